-- Fragment: this window's count, and the previous one's weighted by how much of it is still in view. After now.lua.
--
-- Stored: number of the window, its count, the count of the one before. All products are below 2^53, so the comparison
-- is exact.
--
-- KEYS     none of its own: the caller gives the key
-- Defines  sliding_counter(key, cost, limit, window in ms) -> ms to wait (0: may take), estimate * window,
--            commit() -> the same afterwards, ms until all is free, receipt; ms until all is free
local function sliding_counter(key, cost, limit, window)
  local time = math.floor(now() / 1000)
  local index = math.floor(time / window)
  local left = (index + 1) * window - time
  local current, previous = 0, 0
  local value = redis.call('GET', key)
  if value then
    local at, count, before = string.match(value, '^(%d+) (%d+) (%d+)$')
    if tonumber(at) == index then
      current, previous = tonumber(count), tonumber(before)
    elseif at + 1 == index then
      previous = tonumber(count)
    end
  end
  local estimate = previous * left + current * window
  local reset = current > 0 and left + window or previous > 0 and left or 0
  local room = limit - current - cost
  if previous * left > room * window then
    local wait
    if room >= 0 then
      -- Later in this window the previous one weighs little enough.
      wait = left - math.floor(room * window / previous)
    else
      -- This window alone is too full: it has to become the previous one, and to fade.
      wait = left + math.max(0, window - math.floor((limit - cost) * window / current))
    end
    return wait, estimate, nil, reset
  end
  return 0, estimate, function()
    redis.call('SET', key, string.format('%.0f %.0f %.0f', index, current + cost, previous), 'PX', left + window)
    return estimate + cost * window, left + window, string.format('%.0f', index)
  end, reset
end
