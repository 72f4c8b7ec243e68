-- Fragment: keeps a request for so many milliseconds; its marks stay if they last longer. After now.lua.
--
-- KEYS  1 the request
local function keep(ms, last_mark)
  if not last_mark then return redis.call('PEXPIRE', KEYS[1], ms) end
  local ends, last = math.floor(now() / 1000) + ms, tonumber(last_mark)
  if last > ends then
    redis.call('HSET', KEYS[1], 'x', string.format('%.0f', ends))
  else
    redis.call('HDEL', KEYS[1], 'x')
  end
  return redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.max(ends, last)))
end
