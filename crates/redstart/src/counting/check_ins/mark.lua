-- Marks a day of a year, or takes the mark back.
-- KEYS[1] the year's bitmap
-- ARGV[1] day of the year from 0  ARGV[2] 1 or 0  ARGV[3] when the year expires, ms since the epoch, 0 for never
-- Returns whether it was marked before
local was = redis.call('SETBIT', KEYS[1], ARGV[1], ARGV[2])
if ARGV[3] ~= '0' then
  redis.call('PEXPIREAT', KEYS[1], ARGV[3])
end
return was
