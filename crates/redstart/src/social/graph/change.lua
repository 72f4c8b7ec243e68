-- Follows, unfollows or blocks, both sides in one step. For accounts of one shard.
-- KEYS[1] accounts that a follows  KEYS[2] accounts that follow a  KEYS[3] accounts that a blocks
-- KEYS[4] accounts that b follows  KEYS[5] accounts that follow b  KEYS[6] accounts that b blocks
-- ARGV[1] follow, unfollow or block  ARGV[2] a  ARGV[3] b
-- Returns done; already or nothing if nothing changed; blocked if one of the two blocks the other
local operation, a, b = ARGV[1], ARGV[2], ARGV[3]
if operation == 'unfollow' then
  redis.call('ZREM', KEYS[5], a)
  return redis.call('ZREM', KEYS[1], b) == 1 and 'done' or 'nothing'
end

local at = string.format('%.0f', now())
if operation == 'block' then
  local new = redis.call('ZADD', KEYS[3], 'NX', at, b)
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
redis.call('ZADD', KEYS[1], at, b)
redis.call('ZADD', KEYS[5], at, a)
return 'done'
