-- Fragment: keeps a request for so many milliseconds, and for as long as its marks. After now.lua.
--
-- KEYS  1 the request
local function keep(ms, last_mark)
  if not last_mark then return redis.call('PEXPIRE', KEYS[1], ms) end
  local ends = math.max(math.floor(now() / 1000) + ms, tonumber(last_mark))
  return redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends))
end
