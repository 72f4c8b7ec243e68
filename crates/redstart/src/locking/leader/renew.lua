-- Lets the leader's lease run for at least `ttl` from now, if the office is still its own.
--
-- KEYS     1  the office (hash: token, id, term)
-- ARGV     1  the leader's token
--          2  ttl in ms
-- Returns  1 if the office is its own, else 0
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
