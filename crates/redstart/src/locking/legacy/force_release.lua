-- Releases the lock of the given holder, regardless of the caller, and wakes the waiters.
--
-- KEYS     1  the lock (string: the time at which it ends)
--          2  its owner among clients of this library (hash: token, stamp)
--          3  unused here: the last fence token
-- ARGV     1  the holder: its token, or what another client wrote
--          2  the channel on which waiters listen
-- Returns  1 if the holder still had the lock, else 0
local held = redis.call('GET', KEYS[1])
local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
local holder = held and owner[2] == held and owner[1] or held
-- A mutex that took over too early may have marked its token.
if not holder or holder ~= ARGV[1] and (string.sub(holder, 1, 3) ~= 'rs-' or holder ~= ARGV[1] .. '+') then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('SPUBLISH', ARGV[2], '')
return 1
