-- Creates a tag shard if it does not exist, with a new identity.
--
-- KEYS[1] the shard
-- ARGV[1] a random identity
-- ARGV[2] how long it is kept, ms
--
-- Returns {-identity, -count}
if not redis.call('ZSCORE', KEYS[1], '#id') then
  redis.call('ZADD', KEYS[1], '-' .. ARGV[1], '#id', 0, '#n')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {redis.call('ZSCORE', KEYS[1], '#id'), redis.call('ZSCORE', KEYS[1], '#n')}
