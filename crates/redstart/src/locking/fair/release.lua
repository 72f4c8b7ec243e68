-- Gives the lock back, or the place in line, and wakes the one whose turn it is.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  the line (sorted set: token -> its number)
--          3  the places' leases (sorted set: token -> end of its lease in us)
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
-- Returns  1 if the lock was the owner's, else 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
local holder = redis.call('GET', KEYS[1])
local held = holder == ARGV[1]
if held then
  redis.call('DEL', KEYS[1])
elseif holder then
  return 0
end
for _, token in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now))) do
  redis.call('ZREM', KEYS[2], token)
  redis.call('ZREM', KEYS[3], token)
end
local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if head then
  redis.call('SPUBLISH', ARGV[2], head)
end
return held and 1 or 0
