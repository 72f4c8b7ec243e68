-- Records visitors of a day, unless the day is past its retention.
-- KEYS[1] the day's sketch
-- ARGV[1] when it expires, in ms since the epoch, 0 for never  ARGV[2..] ids
-- Returns 1 if the sketch changed, 0 if not, -1 if it is too late
local until_ms = tonumber(ARGV[1])
if until_ms > 0 then
  local now = redis.call('TIME')
  if tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) >= until_ms then
    return -1
  end
end
local changed = 0
for i = 2, #ARGV, 1000 do
  if redis.call('PFADD', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) == 1 then
    changed = 1
  end
end
if until_ms > 0 then
  redis.call('PEXPIREAT', KEYS[1], ARGV[1])
end
return changed
