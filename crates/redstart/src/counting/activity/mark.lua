-- Marks users as active on a day.
-- KEYS[1] the day's bitmap
-- ARGV[1] when it expires, ms since the epoch, 0 for never  ARGV[2..] ids
-- Returns how many were not marked before
local existed = redis.call('EXISTS', KEYS[1]) == 1
local fresh = 0
for i = 2, #ARGV do
  if redis.call('SETBIT', KEYS[1], ARGV[i], 1) == 0 then
    fresh = fresh + 1
  end
end
keep_until(KEYS[1], existed, ARGV[1])
return fresh
