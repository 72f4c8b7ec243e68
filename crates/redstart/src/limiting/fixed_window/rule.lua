-- Fragment: one counter for each window of the server's clock. After now.lua.
--
-- Stored: the count and the millisecond at which its window ends, which is also when the key expires.
--
-- KEYS     none of its own: the caller gives the key
-- Defines  fixed_window(key, cost, limit, window in ms) -> ms to wait (0: may take), count,
--            commit() -> count afterwards, ms until the window ends, receipt; ms until the window ends
local function fixed_window(key, cost, limit, window)
  local time = math.floor(now() / 1000)
  local ends = time - time % window + window
  local used = 0
  local value = redis.call('GET', key)
  if value then
    local count, till = string.match(value, '^(%d+) (%d+)$')
    -- The key may outlive its window by less than a millisecond.
    if tonumber(till) == ends then used = tonumber(count) end
  end
  if used + cost - limit > 0 then return ends - time, used, nil, ends - time end
  return 0, used, function()
    redis.call('SET', key, string.format('%.0f %.0f', used + cost, ends), 'PXAT', ends)
    return used + cost, ends - time, string.format('%.0f', ends)
  end, ends - time
end
