-- The first of three steps between two shards: stores on a's side what is to be done on b's side.
-- KEYS[1] accounts that a follows  KEYS[2] accounts that follow a  KEYS[3] accounts that a blocks  KEYS[4] intents of the shard: pair -> operation and number
-- KEYS[5] intents by time  KEYS[6] the last number
-- ARGV[1] follow, unfollow or block  ARGV[2] a  ARGV[3] b
-- Returns {go, operation, number}; {pending, operation, number} if another intent for b must be finished first;
-- {blocked}, {already} or {nothing} if nothing is to be done
local operation, a, b = ARGV[1], ARGV[2], ARGV[3]
local pair = a .. '\0' .. b
local pending = redis.call('HGET', KEYS[4], pair)
if pending then
  local what, number = string.match(pending, '^(%a+) (%d+)$')
  return {'pending', what, number}
end
if operation == 'follow' then
  if redis.call('ZSCORE', KEYS[3], b) then
    return {'blocked', '', '0'}
  end
  if redis.call('ZSCORE', KEYS[1], b) then
    return {'already', '', '0'}
  end
elseif operation == 'unfollow' then
  if not redis.call('ZSCORE', KEYS[1], b) then
    return {'nothing', '', '0'}
  end
elseif redis.call('ZSCORE', KEYS[3], b) then
  return {'already', '', '0'}
end

-- Numbers grow with every intent of the shard, whatever its server's clock does, and are times in microseconds.
local number = math.max(now(), tonumber(redis.call('GET', KEYS[6]) or 0) + 1)
local text = string.format('%.0f', number)
redis.call('SET', KEYS[6], text)
if operation == 'block' then
  redis.call('ZADD', KEYS[3], text, b)
  redis.call('ZREM', KEYS[1], b)
  redis.call('ZREM', KEYS[2], b)
end
redis.call('HSET', KEYS[4], pair, operation .. ' ' .. text)
redis.call('ZADD', KEYS[5], text, pair)
return {'go', operation, text}
