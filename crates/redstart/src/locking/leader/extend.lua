-- Makes the leader's lease run for at least `ttl` from now, if it still leads.
--
-- KEYS     1  the office (hash: token, id, term)
--          2  unused here: the last term
-- ARGV     1  the leader's token
--          2  ttl in ms
--          3  unused here: the leader's id
-- Returns  1 if it leads, else 0
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
