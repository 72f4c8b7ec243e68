-- Registers a worker under a new name. A worker that starts also writes down how its queue is set, for programs that do
-- not know.
--
-- KEYS  1 running of this worker  2 workers  3 meta
-- ARGV  1 worker  2 epoch  3 lease in microseconds  4 settings ('' = the defaults, '-' = leave them as they are)
-- Returns  1
redis.call('HSET', KEYS[1], '', ARGV[2])
redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[3]), ARGV[1])
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[3], 'settings')
elseif ARGV[4] ~= '-' then
  redis.call('HSET', KEYS[3], 'settings', ARGV[4])
end
return 1
