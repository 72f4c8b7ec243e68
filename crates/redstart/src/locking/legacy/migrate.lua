-- Moves the end of a SETNX/GETSET lock into the TTL of its key, and deletes the key if that end has passed.
--
-- KEYS     1  the lock (string: the time at which it ends)
-- ARGV     1  the unit of the time stamp in us
--          2  the maximum clock error of old clients in us
-- Returns  what the lock was, {state, ms}: 'free' 0, 'held' ms left, 'expired' ms since then, 'foreign' 0
local held = redis.call('GET', KEYS[1])
if not held then
  return {'free', 0}
end
local stamp = read_stamp(held)
if not stamp then
  return {'foreign', 0}
end
local ends = stamp * ARGV[1] + ARGV[2]
local left = ends - now()
if left < 0 then
  redis.call('DEL', KEYS[1])
  return {'expired', math.floor(-left / 1000)}
end
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(ends / 1000) + 1))
return {'held', math.floor(left / 1000)}
