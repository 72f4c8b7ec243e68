-- Marks users as active on a day.
-- KEYS[1] the day's bitmap
-- ARGV[1] when it expires, ms since the epoch, 0 for never  ARGV[2..] ids
-- Returns how many were not marked before
local fresh = 0
for i = 2, #ARGV do
  if redis.call('SETBIT', KEYS[1], ARGV[i], 1) == 0 then
    fresh = fresh + 1
  end
end
if ARGV[1] ~= '0' then
  redis.call('PEXPIREAT', KEYS[1], ARGV[1])
end
return fresh
