-- Records visitors of a day, unless the day is past its lifetime.
-- KEYS[1] the day's sketch
-- ARGV[1] when it expires, in ms since the epoch, 0 for never  ARGV[2..] ids
-- Returns 1 if the sketch changed, 0 if not, -1 if it is too late
if ARGV[1] ~= '0' and now() >= ARGV[1] * 1000 then
  return -1
end
local existed = redis.call('EXISTS', KEYS[1]) == 1
local changed = 0
for i = 2, #ARGV, 1000 do
  if redis.call('PFADD', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) == 1 then
    changed = 1
  end
end
keep_until(KEYS[1], existed, ARGV[1])
return changed
