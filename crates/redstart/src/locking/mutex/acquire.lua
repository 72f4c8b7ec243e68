-- Takes the lock if it is free and issues its fence token in the same step.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  the last fence token issued
-- ARGV     1  the owner's token
--          2  ttl in ms
-- Returns  {1, fence token}, or {0, ms until the holder's lease ends; -1 if it never does}
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return {0, redis.call('PTTL', KEYS[1])}
  end
  -- The same request again, because its first answer was lost: the same token again.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  local fence = redis.call('GET', KEYS[2])
  if fence then
    return {1, fence}
  end
end
return {1, next_fence(KEYS[2])}
