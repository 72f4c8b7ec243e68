-- Adds or changes a cron entry. An unchanged entry keeps its next tick, so that a restart neither repeats a tick nor
-- skips one.
--
-- KEYS  1 cron  2 cron entries  3 meta
-- ARGV  1 wake channel  2 entry  3 its definition  4 its first tick in microseconds
-- Returns  1 added or changed, 0 it exists unchanged
if redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[3] and redis.call('ZSCORE', KEYS[1], ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[2])
wake(KEYS[3], ARGV[1])
return 1
