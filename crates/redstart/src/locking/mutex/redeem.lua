-- Gives a held lock to a new owner, once. Used by every lock that keeps its owner's token in a string. The lease runs
-- for at least `ttl` from now.
--
-- KEYS     1  the lock (string: the owner's token, followed by '+' if there are waiters)
--          2-  unused here: the lock's other keys
-- ARGV     1  the token of the owner that handed it over
--          2  the new owner's token
--          3  ttl in ms
--          4-  unused here: the channel, and the lock's arguments
-- Returns  1 if the lock is the new owner's now, else 0
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] or holder == ARGV[1] .. '+' then
  redis.call('SET', KEYS[1], ARGV[2] .. string.sub(holder, #ARGV[1] + 1), 'KEEPTTL')
elseif holder ~= ARGV[2] and holder ~= ARGV[2] .. '+' then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
