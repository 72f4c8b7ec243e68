-- Makes the owner's lease run for at least `ttl` from now, if the lock is still its own. Never shortens it. Used by
-- every lock that keeps its owner's token in a string.
--
-- KEYS     1  the lock (string: the owner's token, followed by '+' if there are waiters)
-- ARGV     1  the owner's token
--          2  ttl in ms
-- Returns  1 if the lock is the owner's, else 0
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] and holder ~= ARGV[1] .. '+' then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
