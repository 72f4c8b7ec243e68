-- Adds or changes a cron entry. An entry whose schedule is unchanged keeps its next tick, so that neither a restart nor a
-- new payload repeats a tick or skips one.
--
-- KEYS  1 cron  2 crontab  3 entries that are paused
-- ARGV  1 wake channel  2 entry  3 its definition  4 its first tick in microseconds  5 its expression  6 its time zone
-- Returns  1 added or changed, 0 it exists unchanged
local before, tick = redis.call('HGET', KEYS[2], ARGV[2]), redis.call('ZSCORE', KEYS[1], ARGV[2])
if before == ARGV[3] and tick then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
if redis.call('SISMEMBER', KEYS[3], ARGV[2]) == 1 then return before == ARGV[3] and 0 or 1 end
if before and tick then
  local readable, old = pcall(cjson.decode, before)
  if readable and old.expression == ARGV[5] and old.time_zone == ARGV[6] then return 1 end
end
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[2])
redis.call('SPUBLISH', ARGV[1], 'schedule')
return 1
