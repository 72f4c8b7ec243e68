-- Fragment: the time stamps that SETNX/GETSET clients keep in a lock.
--
-- Defines  read_stamp(text) -> the number, or nil if the text is not a time stamp
--          stamp_text(stamp), stamp_expiry(stamp, unit) -> the stamp, and the ms at which the key expires, as text
local function read_stamp(text)
  return #text <= 20 and tonumber(string.match(text, '^%d+%.?%d*$')) or nil
end

local function stamp_text(stamp)
  return string.format('%.0f', stamp)
end

local function stamp_expiry(stamp, unit)
  return string.format('%.0f', math.ceil((stamp + 1) * unit / 1000))
end
