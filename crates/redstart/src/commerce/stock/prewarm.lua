-- Puts units on sale, unless the sale is already running.
-- KEYS[1] sale
-- ARGV    units, ms until everything about the sale may be forgotten
-- Returns 1, or 0 if it is running
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local time = redis.call('TIME')
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
redis.call('HSET', KEYS[1], 'free', ARGV[1], 'held', 0, 'sold', 0, 'lent', 0, 'moves', 0,
  'ends', string.format('%.0f', ends))
redis.call('PEXPIREAT', KEYS[1], ends)
return 1
