-- Releases the lock of the given holder, regardless of the caller, and wakes the waiters.
--
-- KEYS     1  the lock (string: the owner's token, followed by '+' if there are waiters)
-- ARGV     1  the holder's token
--          2  the channel on which waiters listen
-- Returns  1 if the holder still had the lock, else 0
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] and holder ~= ARGV[1] .. '+' then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SPUBLISH', ARGV[2], '')
return 1
