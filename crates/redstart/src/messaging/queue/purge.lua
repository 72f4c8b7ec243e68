-- Deletes dead letters.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6... job ids
-- Returns  how many were deleted
local gone = 0
for i = 6, #ARGV do
  if redis.call('ZREM', dead, ARGV[i]) == 1 then
    gone = gone + 1
    local record = redis.call('HGET', jobs, ARGV[i])
    if record and well_formed(record) then
      forget(record)
    else
      redis.call('HDEL', details, ARGV[i] .. 'x')
    end
    redis.call('HDEL', jobs, ARGV[i])
  end
end
return gone
