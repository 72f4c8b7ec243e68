-- Fragment: one counter for each window of the server's clock.
--
-- Stored: the count. The key expires when its window ends, so what is left of it is the rest of the window, and a clock is
-- read only for the first request of a window.
--
-- KEYS     none of its own: the caller gives the key
-- Defines  fixed_look(key, cost, limit, window in ms) -> ms to wait (0: may take), count, ms until the window ends (0: there is
--            none yet)
--          fixed_take(key, cost, window, left) -> count afterwards, ms until the window ends, its end in ms
local function fixed_look(key, cost, limit, window)
  local used, left = tonumber(redis.call('GET', key) or 0), redis.call('PTTL', key)
  -- At the very end of its window the key may still be there. A window that is longer than it can be is one of a clock that
  -- was set back since.
  if not used or left <= 0 or left - window > 0 then used, left = 0, 0 end
  if used + cost - limit > 0 then return left, used, left end
  return 0, used, left
end

local function fixed_take(key, cost, window, left)
  if left > 0 then
    return redis.call('INCRBY', key, cost), left, redis.call('PEXPIRETIME', key)
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local ends = now - now % window + window
  redis.call('SET', key, cost, 'PXAT', string.format('%.0f', ends))
  return tonumber(cost), ends - now, ends
end
