-- Renews a worker's lease while it is registered: it never takes back what was given to others.
--
-- KEYS  1 running of this worker  2 workers
-- ARGV  1 worker  2 lease in microseconds
-- Returns  -1 not registered, otherwise how many jobs the worker holds
if redis.call('HEXISTS', KEYS[1], '') == 0 then return -1 end
redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[2]), ARGV[1])
return redis.call('HLEN', KEYS[1]) - 1
