-- Removes a cron entry.
--
-- KEYS  1 cron  2 crontab  3 entries that are paused
-- ARGV  1 entry
-- Returns  1 removed, 0 it did not exist
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('SREM', KEYS[3], ARGV[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
