-- Registers a worker under a new name.
--
-- KEYS  1 running of this worker  2 workers
-- ARGV  1 worker  2 epoch  3 lease in microseconds
-- Returns  1
redis.call('HSET', KEYS[1], '', ARGV[2])
redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[3]), ARGV[1])
return 1
