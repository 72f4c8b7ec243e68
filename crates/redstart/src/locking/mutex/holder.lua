-- Reads who holds the lock. Changes nothing.
--
-- KEYS     1  the lock (string: the owner's token, followed by '+' if there are waiters)
-- ARGV     1  the channel on which waiters listen
-- Returns  {the value of the lock, ms until its lease ends (-1 if it never does), processes that wait}, or nil
local holder = redis.call('GET', KEYS[1])
if not holder then
  return false
end
local waiting = redis.call('PUBSUB', 'SHARDNUMSUB', ARGV[1])
return {holder, redis.call('PTTL', KEYS[1]), waiting[2]}
