-- Releases the lock, or leaves the line, and wakes the first waiter if the lock is free.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  the line (sorted set: token -> its number)
--          3  the leases of the places (sorted set: token -> end of its lease in us)
--          4  unused here: the last fence token
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
-- Returns  1 if the lock was the owner's, else 0
line.leave(KEYS[2], KEYS[3], ARGV[1])
local holder = redis.call('GET', KEYS[1])
local held = holder == ARGV[1]
if held then
  redis.call('DEL', KEYS[1])
elseif holder then
  return 0
end
line.reap(KEYS[2], KEYS[3], now())
local head = line.head(KEYS[2], KEYS[3])
if head then
  redis.call('SPUBLISH', ARGV[2], head)
end
return held and 1 or 0
