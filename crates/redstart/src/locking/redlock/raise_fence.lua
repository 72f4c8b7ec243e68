-- Raises this server's fence counter to the token that the quorum agreed on, for the owner of the lock.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  the last fence token
-- ARGV     1  the owner's token
--          2  the fence token
-- Returns  1 if the lock is the owner's and the counter is now at least the token, else 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if tonumber(redis.call('GET', KEYS[2]) or '0') < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2])
end
return 1
