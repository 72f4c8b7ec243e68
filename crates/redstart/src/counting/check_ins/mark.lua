-- Marks a day of a year, or removes the mark.
-- KEYS[1] the year's bitmap
-- ARGV[1] day of the year from 0  ARGV[2] 1 or 0  ARGV[3] when the year expires, ms since the epoch, 0 for never
-- Returns whether it was marked before
local existed = redis.call('EXISTS', KEYS[1]) == 1
local was = redis.call('SETBIT', KEYS[1], ARGV[1], ARGV[2])
keep_until(KEYS[1], existed, ARGV[3])
return was
