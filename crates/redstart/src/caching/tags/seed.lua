-- Makes a tag shard if there is none, under a fresh identity.
--
-- KEYS[1] the shard
-- ARGV[1] a random identity
-- ARGV[2] how long it is kept, ms
--
-- Returns {identity, count}
if redis.call('HSETNX', KEYS[1], '#id', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], '#n', 0)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return redis.call('HMGET', KEYS[1], '#id', '#n')
