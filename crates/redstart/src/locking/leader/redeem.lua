-- Gives the office to another candidate, once, with a new term. Its lease runs for at least `ttl` from now.
--
-- KEYS     1  the office (hash: token, id, term)
--          2  the last term
-- ARGV     1  the token of the leader that handed it over
--          2  the new leader's token
--          3  ttl in ms
--          4  the channel on which candidates and observers listen
--          5  the new leader's id
-- Returns  the term, or nil if the office is not to be had
local holder = redis.call('HGET', KEYS[1], 'token')
if holder == ARGV[1] then
  redis.call('HSET', KEYS[1], 'token', ARGV[2], 'id', ARGV[5], 'term', next_fence(KEYS[2]))
  -- Candidates react only to an empty message, observers to every message.
  redis.call('SPUBLISH', ARGV[4], 'elected')
elseif holder ~= ARGV[2] then
  return false
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return redis.call('HGET', KEYS[1], 'term')
