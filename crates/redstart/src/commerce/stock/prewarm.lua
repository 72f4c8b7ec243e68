-- Puts units on sale, unless the sale is already running. After now.lua.
--
-- KEYS     1  sale
-- ARGV     1  units
--          2  ms until everything about the sale may be forgotten
-- Returns  1, or 0 if it is running
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local ends = math.floor(now() / 1000) + ARGV[2]
redis.call('HSET', KEYS[1], 'free', ARGV[1], 'held', 0, 'sold', 0, 'lent', 0, 'moves', 0,
  'ends', string.format('%.0f', ends))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends))
return 1
