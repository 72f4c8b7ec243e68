-- The second of three steps between two shards: applies a's intent on b's side. Applying it twice, or late, changes
-- nothing: the last number that was applied for a is remembered for a day.
-- KEYS[1] accounts that b follows  KEYS[2] accounts that follow b  KEYS[3] accounts that b blocks  KEYS[4] numbers seen by b
-- KEYS[5] intents of b's shard: pair -> operation and number  KEYS[6] intents by time  KEYS[7] the last number of b's shard
-- KEYS[8] the newest thousand follows of b that blocks ended, for an hour: account and number
-- ARGV[1] follow, unfollow or block  ARGV[2] a  ARGV[3] b  ARGV[4] number
-- Returns {1 if a follows b now, 0 if not; the last number of b's shard}
local operation, a, b = ARGV[1], ARGV[2], ARGV[3]
local number = tonumber(ARGV[4])
local seen = tonumber(redis.call('ZSCORE', KEYS[4], a) or redis.call('ZSCORE', KEYS[2], a) or 0)
if number > seen then
  redis.call('ZADD', KEYS[4], ARGV[4], a)
  if operation == 'follow' then
    if not redis.call('ZSCORE', KEYS[3], a) then
      redis.call('ZADD', KEYS[2], ARGV[4], a)
    end
  else
    redis.call('ZREM', KEYS[2], a)
  end
  if operation == 'block' then
    redis.call('ZREM', KEYS[1], a)
    -- A follow by b that was applied on a's side before the block, and is not complete here, must not complete.
    local pair = b .. '\0' .. a
    local pending = redis.call('HGET', KEYS[5], pair)
    if pending and string.sub(pending, 1, 7) == 'follow ' then
      redis.call('HDEL', KEYS[5], pair)
      redis.call('ZREM', KEYS[6], pair)
      local cancelled = string.sub(pending, 8)
      redis.call('ZADD', KEYS[8], cancelled, a .. '\0' .. cancelled)
      redis.call('ZREMRANGEBYRANK', KEYS[8], 0, -1001)
      redis.call('EXPIRE', KEYS[8], 3600)
    end
  end
  local yesterday = now() - 86400 * 1000000
  local old = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', yesterday), 'LIMIT', 0, 20)
  if #old > 0 then
    redis.call('ZREM', KEYS[4], unpack(old))
  end
end
return {redis.call('ZSCORE', KEYS[2], a) and 1 or 0, redis.call('GET', KEYS[7]) or '0'}
