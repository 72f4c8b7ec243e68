-- Fragment: the time stamps that SETNX/GETSET clients keep in a lock. After now.lua.
--
-- Defines  read_stamp(text) -> the number, or nil if the text is not a time stamp
--          stamp_text(stamp), stamp_expiry(stamp, unit) -> the stamp, and the ms at which the key expires, as text
--          prolong(lock, owner, stamp, ttl, unit, skew)  moves the stamp of a lock of this library to `ttl` ms from now,
--          unless it is later
local function read_stamp(text)
  return #text <= 20 and tonumber(string.match(text, '^%d+%.?%d*$')) or nil
end

local function stamp_text(stamp)
  return string.format('%.0f', stamp)
end

local function stamp_expiry(stamp, unit)
  return string.format('%.0f', math.ceil((stamp + 1) * unit / 1000))
end

local function prolong(lock, owner, before, ttl, unit, skew)
  local stamp = math.floor((now() + ttl * 1000 + skew) / unit) + 1
  if stamp > tonumber(before) then
    local text, expiry = stamp_text(stamp), stamp_expiry(stamp, unit)
    redis.call('SET', lock, text, 'PXAT', expiry)
    redis.call('HSET', owner, 'stamp', text)
    redis.call('PEXPIREAT', owner, expiry)
  end
end
