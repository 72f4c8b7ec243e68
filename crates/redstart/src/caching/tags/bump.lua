-- Invalidates a tag: what was loaded before now and carries it is a miss.
--
-- KEYS[1] the tag's shard
-- ARGV[1] the tag's field
-- ARGV[2] a random identity, should the shard have to begin anew
-- ARGV[3] how many fields a shard may have
-- ARGV[4] how long it is kept, ms
-- ARGV[5] the classic channel that tells first-level caches
-- ARGV[6] what to say there
--
-- Returns 'OK'
if redis.call('HSETNX', KEYS[1], '#id', ARGV[2]) == 1 then
  redis.call('HSET', KEYS[1], '#n', 0)
end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  -- Too many tags to remember: forget them all, and with them everything that carries one of this shard.
  redis.call('UNLINK', KEYS[1])
  redis.call('HSET', KEYS[1], '#id', ARGV[2], '#n', 0)
else
  redis.call('HSET', KEYS[1], ARGV[1], redis.call('HINCRBY', KEYS[1], '#n', 1))
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', ARGV[5], ARGV[6])
return redis.status_reply('OK')
