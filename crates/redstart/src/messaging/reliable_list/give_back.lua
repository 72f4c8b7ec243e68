-- Puts back what a consumer took and does not know of, to be taken next.
--
-- A look knows of the items that the consumer had when it was sent. One that arrives after a later one does nothing: it does
-- not know of what was taken in between.
--
-- KEYS  1 the list  2 what the consumer took  3 numbers of the last looks, by consumer  4 consumers
-- ARGV  1 consumer  2 number of the look  3… the items that the consumer knows of
-- Returns  how many items were put back
local last = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[1]) or 0)
if tonumber(ARGV[2]) <= last then return 0 end
-- One that has left has no number: it would stay for ever.
if redis.call('ZSCORE', KEYS[4], ARGV[1]) then redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1]) end
local known = {}
for i = 3, #ARGV do known[ARGV[i]] = (known[ARGV[i]] or 0) + 1 end
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
