-- Fragment: a token bucket of any rate.
--
-- A token is a whole number of parts, and `rate` parts are paid back each microsecond, so that three tokens per second
-- are exactly that. Stored: the second of the last take (10 digits), then the parts from the start of that second until
-- the debt is paid. Microseconds since 1970 times the rate would not be exact, which is why now.lua is not used here.
--
-- KEYS     none of its own: the caller gives the key
-- Defines  exact_look(key, room, rate) -> how much the debt exceeds the room in parts (above 0: refused),
--            debt in parts, the second, the parts since that second began
--          exact_take(key, cost, rate, debt, second, tick) -> debt afterwards in parts
local function exact_look(key, room, rate)
  local time = redis.call('TIME')
  local value = redis.call('GET', key)
  local tick = time[2] * rate
  local debt = 0
  if value then
    debt = string.sub(value, 11) - (time[1] - string.sub(value, 1, 10)) * 1000000 * rate - tick
    if debt < 0 then debt = 0 end
  end
  return debt - room, debt, time[1], tick
end

local function exact_take(key, cost, rate, debt, second, tick)
  local after = debt + cost
  -- The TTL is never shorter than the debt.
  redis.call('SET', key, string.format('%s%.0f', second, tick + after), 'PX', math.ceil(after / rate / 1000))
  return after
end
