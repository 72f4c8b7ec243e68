-- Lets the lease run for at least `ttl` from now, if it is still the owner's. Never shortens it.
--
-- KEYS     1  the lock (string: the owner's token)
-- ARGV     1  the owner's token
--          2  ttl in ms
-- Returns  1 if it is the owner's, else 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
