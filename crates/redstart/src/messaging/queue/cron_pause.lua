-- Pauses a cron entry, or lets it go on with a tick.
--
-- KEYS  1 cron  2 crontab  3 entries that are paused
-- ARGV  1 wake channel  2 entry  3 its next tick in microseconds ('' = pause)
-- Returns  1, or 0 if there is no such entry
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 0 then return 0 end
if ARGV[3] == '' then
  redis.call('SADD', KEYS[3], ARGV[2])
  redis.call('ZREM', KEYS[1], ARGV[2])
elseif redis.call('SREM', KEYS[3], ARGV[2]) == 1 then
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
  redis.call('SPUBLISH', ARGV[1], 'schedule')
end
return 1
