-- Stores a score by its policy in the member's shard.
-- KEYS[1] the shard
-- ARGV[1] order: high, low  ARGV[2] policy: best, last, sum  ARGV[3] member  ARGV[4] score
-- Returns {score, previous score or nil}
local previous = redis.call('ZSCORE', KEYS[1], ARGV[3])
if ARGV[2] == 'sum' then
  local sum = redis.call('ZINCRBY', KEYS[1], ARGV[4], ARGV[3])
  return {sum, previous}
end
if ARGV[2] == 'last' then
  redis.call('ZADD', KEYS[1], ARGV[4], ARGV[3])
else
  redis.call('ZADD', KEYS[1], ARGV[1] == 'high' and 'GT' or 'LT', ARGV[4], ARGV[3])
end
return {redis.call('ZSCORE', KEYS[1], ARGV[3]), previous}
