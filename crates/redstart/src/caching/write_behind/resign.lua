-- Gives the ownership of a shard back.
--
-- KEYS[1] the owner
-- ARGV[1] the worker's token
-- ARGV[2] the channel that wakes other workers
--
-- Returns 1 if it was ours
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('UNLINK', KEYS[1])
redis.call('SPUBLISH', ARGV[2], 'free')
return 1
