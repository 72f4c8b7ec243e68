-- Deletes dead letters.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6... job ids
-- Returns  {how many were deleted, how many were looked at: as many as one script should}
local gone, now = 0, now()
for i = 6, #ARGV do
  if is_enough() then return { gone, i - 6 } end
  if redis.call('ZSCORE', dead, ARGV[i]) then
    gone = gone + 1
    drop_letter(ARGV[i], now)
  end
end
return { gone, #ARGV - 5 }
