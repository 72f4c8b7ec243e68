-- Reads who holds the lock. Changes nothing.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  unused here: the line
--          3  the leases of the places (sorted set: token -> end of its lease in us)
--          4  unused here: the last fence token
-- ARGV     none
-- Returns  {the owner's token, ms until its lease ends, how many are in line}, or nil
local holder = redis.call('GET', KEYS[1])
if not holder then
  return false
end
return {holder, redis.call('PTTL', KEYS[1]), leases.count(KEYS[3], now())}
