-- Elects the candidate if there is no leader, and issues the term in the same step.
--
-- KEYS     1  the office (hash: token, id, term)
--          2  the last term
-- ARGV     1  the candidate's token
--          2  ttl in ms
--          3-4  unused here: whether to queue, the waiter's lease in ms
--          5  the channel on which candidates and observers listen
--          6  the candidate's id
-- Returns  {1, term}, or {0, ms until the leader's lease ends; -1 if it never does}
local holder = redis.call('HGET', KEYS[1], 'token')
if holder == ARGV[1] then
  -- The same request again, because its first reply was lost.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, redis.call('HGET', KEYS[1], 'term')}
elseif holder then
  return {0, redis.call('PTTL', KEYS[1])}
end
local term = next_fence(KEYS[2])
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'id', ARGV[6], 'term', term)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- Candidates react only to an empty message, observers to every message.
redis.call('SPUBLISH', ARGV[5], 'elected')
return {1, term}
