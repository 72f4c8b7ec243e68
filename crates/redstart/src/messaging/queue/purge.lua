-- Deletes dead letters.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6... job ids
-- Returns  how many were deleted
local gone, now = 0, now()
for i = 6, #ARGV do
  if redis.call('ZSCORE', dead, ARGV[i]) then
    gone = gone + 1
    drop_letter(ARGV[i], now)
  end
end
return gone
