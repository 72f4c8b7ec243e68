-- Follows, unfollows or blocks, both sides in one step. For accounts of one bucket.
-- KEYS[1] whom a follows  KEYS[2] who follows a  KEYS[3] whom a blocks
-- KEYS[4] whom b follows  KEYS[5] who follows b  KEYS[6] whom b blocks
-- ARGV[1] follow, unfollow or block  ARGV[2] a  ARGV[3] b
-- Returns done; already or nothing if it was so before; blocked if one of the two blocks the other
local operation, a, b = ARGV[1], ARGV[2], ARGV[3]
if operation == 'unfollow' then
  redis.call('ZREM', KEYS[5], a)
  return redis.call('ZREM', KEYS[1], b) == 1 and 'done' or 'nothing'
end

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
if operation == 'block' then
  local new = redis.call('ZADD', KEYS[3], 'NX', now, b)
  redis.call('ZREM', KEYS[1], b)
  redis.call('ZREM', KEYS[2], b)
  redis.call('ZREM', KEYS[4], a)
  redis.call('ZREM', KEYS[5], a)
  return new == 1 and 'done' or 'already'
end
if redis.call('ZSCORE', KEYS[3], b) or redis.call('ZSCORE', KEYS[6], a) then
  return 'blocked'
end
if redis.call('ZSCORE', KEYS[1], b) then
  return 'already'
end
redis.call('ZADD', KEYS[1], now, b)
redis.call('ZADD', KEYS[5], now, a)
return 'done'
