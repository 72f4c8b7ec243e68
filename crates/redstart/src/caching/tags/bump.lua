-- Invalidates a tag: an entry that was loaded before now and carries it is a miss. After now.lua.
--
-- KEYS[1] the tag's shard
-- KEYS[2] a key named after the tag's bucket: created and removed, so that first levels that hear of changed keys
--         know which tags this is about
-- ARGV[1] the tag's member
-- ARGV[2] a random identity, in case the shard does not exist
-- ARGV[3] how many tags a shard remembers
-- ARGV[4] how long it is kept, ms
-- ARGV[5] the classic channel that tells first levels
-- ARGV[6] the message for it
--
-- Returns 'OK'
if not redis.call('ZSCORE', KEYS[1], '#id') then
  redis.call('ZADD', KEYS[1], '-' .. ARGV[2], '#id', 0, '#n')
end
-- Not only the last number and one: after a failover that lost invalidations, their numbers must not come again, because
-- entries on other nodes were stored under them.
local last = -tonumber(redis.call('ZSCORE', KEYS[1], '#n'))
local number = string.format('%.0f', math.max(last + 1, now()))
redis.call('ZADD', KEYS[1], '-' .. number, '#n', number, ARGV[1])
if redis.call('ZCOUNT', KEYS[1], 1, '+inf') > tonumber(ARGV[3]) then
  -- Forget the tag that was invalidated the longest ago. The floor stands for it.
  local oldest = redis.call('ZRANGEBYSCORE', KEYS[1], 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  redis.call('ZREM', KEYS[1], oldest[1])
  redis.call('ZADD', KEYS[1], '-' .. oldest[2], '#floor')
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('SET', KEYS[2], '', 'PX', 1000)
redis.call('UNLINK', KEYS[2])
redis.call('PUBLISH', ARGV[5], ARGV[6])
return redis.status_reply('OK')
