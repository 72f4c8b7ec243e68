-- Puts back what a consumer took and does not know of, to be taken next.
--
-- KEYS  1 the list  2 what the consumer took
-- ARGV  the items that the consumer knows of
-- Returns  how many items were put back
local known = {}
for i = 1, #ARGV do known[ARGV[i]] = (known[ARGV[i]] or 0) + 1 end
local back = 0
for _, item in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  if (known[item] or 0) > 0 then
    known[item] = known[item] - 1
  else
    redis.call('LREM', KEYS[2], 1, item)
    redis.call('RPUSH', KEYS[1], item)
    back = back + 1
  end
end
return back
