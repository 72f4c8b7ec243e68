-- Follows, both sides in one step. For accounts of one bucket.
-- KEYS[1] whom a follows  KEYS[2] who follows b  KEYS[3] whom a blocks  KEYS[4] whom b blocks
-- ARGV[1] a  ARGV[2] b
-- Returns new, already, or blocked
local a, b = ARGV[1], ARGV[2]
if redis.call('ZSCORE', KEYS[3], b) or redis.call('ZSCORE', KEYS[4], a) then
  return 'blocked'
end
if redis.call('ZSCORE', KEYS[1], b) then
  return 'already'
end
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
redis.call('ZADD', KEYS[1], now, b)
redis.call('ZADD', KEYS[2], now, a)
return 'new'
