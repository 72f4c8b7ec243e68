-- Releases the lock if it is the owner's, and wakes the waiters if one of them left a mark.
--
-- KEYS     1  the lock (string: the owner's token, followed by '+' if there are waiters)
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
-- Returns  0 if the lock was not the owner's, else 1 + the number of subscribers that were woken
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
if holder ~= ARGV[1] .. '+' then
  return 0
end
redis.call('DEL', KEYS[1])
return 1 + redis.call('SPUBLISH', ARGV[2], '')
