-- Changes the points of a key as rate-limiter-flexible does, and blocks it in the same step, where the library needs a second one.
--
-- KEYS     1  the counter (string: the points that were consumed in this window)
-- ARGV     1  the points to add; negative to give some back
--          2  the window in s
--          3  the limit
--          4  how long to block a key that exceeds it, in s; 0 for not at all
--          5  the points at which it is blocked; 0 as soon as the limit is exceeded
-- Returns  {the points consumed, ms until the window or the block ends}
redis.call('SET', KEYS[1], 0, 'EX', ARGV[2], 'NX')
local consumed = redis.call('INCRBY', KEYS[1], ARGV[1])
local left = redis.call('PTTL', KEYS[1])
if left == -1 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  left = 1000 * ARGV[2]
end
local changed, limit = tonumber(ARGV[1]), tonumber(ARGV[3])
local block, threshold = tonumber(ARGV[4]), tonumber(ARGV[5])
if block > 0 and consumed > limit then
  local crossed
  if threshold > limit then
    crossed = consumed >= threshold and consumed - changed < threshold
  else
    crossed = consumed <= limit + changed
  end
  if crossed then
    redis.call('SET', KEYS[1], string.format('%.0f', consumed), 'EX', ARGV[4])
    left = 1000 * block
  end
end
return {consumed, left}
