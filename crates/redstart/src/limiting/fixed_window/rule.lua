-- Fixed window: one counter for each window of the server's clock.
-- Stored: the count and the millisecond at which its window ends, which is also when the key expires.
--
-- fixed_window(key, cost, limit, window): window in milliseconds.
-- Returns wait (ms, 0 = may take), count, commit() -> count afterwards, reset (ms), receipt; reset (ms).
local function fixed_window(key, cost, limit, window)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local ends = now - now % window + window
  local used = 0
  local value = redis.call('GET', key)
  if value then
    local count, till = string.match(value, '^(%d+) (%d+)$')
    -- The key may outlive its window by less than a millisecond, and another quota may have left it.
    if tonumber(till) == ends then used = tonumber(count) end
  end
  if used + cost - limit > 0 then return ends - now, used, nil, ends - now end
  return 0, used, function()
    redis.call('SET', key, string.format('%.0f %.0f', used + cost, ends), 'PXAT', ends)
    return used + cost, ends - now, string.format('%.0f', ends)
  end, ends - now
end
