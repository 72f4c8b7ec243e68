-- Token bucket of any rate. A token is a whole number of units, and `rate` units are paid back each
-- microsecond, so that three tokens a second are exactly that.
-- Stored: the second of the last take (10 digits), then the units from the start of that second until the
-- debt is paid. The TTL is never shorter than the debt.
--
-- exact_bucket(key, cost, room, rate): cost and room (capacity - cost) in units.
-- Returns wait (units, 0 = may take), debt (units), commit() -> debt afterwards.
local function exact_bucket(key, cost, room, rate)
  local time = redis.call('TIME')
  local value = redis.call('GET', key)
  local tick = time[2] * rate
  local debt = 0
  if value then
    debt = string.sub(value, 11) - (time[1] - string.sub(value, 1, 10)) * 1000000 * rate - tick
    if debt < 0 then debt = 0 end
  end
  local over = debt - room
  if over > 0 then return over, debt end
  return 0, debt, function()
    debt = debt + cost
    redis.call('SET', key, string.format('%s%.0f', time[1], tick + debt), 'PX', math.ceil(debt / rate / 1000))
    return debt
  end
end
