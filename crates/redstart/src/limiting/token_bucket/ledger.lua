-- Fragment: a token bucket with an account, so that what was taken can be given back.
--
-- The debt is a queue of grants that time pays off from the front. Stored: what the exact bucket stores; the name of the
-- busy period, which begins when a full bucket is first taken from; all that was taken in it, so that a grant has a
-- position in the queue; and the holes that refunds left, as `position:size;`.
--
-- KEYS     none of its own: the caller gives the key
-- Defines  ledger_bucket(key, cost, room, rate, period) -> parts to wait for (0: may take), debt in parts,
--            commit() -> debt afterwards, nil, receipt. `period` names the busy period that a take would begin.
local function ledger_bucket(key, cost, room, rate, period)
  local time = redis.call('TIME')
  local value = redis.call('GET', key)
  local tick = time[2] * rate
  local debt, taken, holes = 0, 0, ''
  if value then
    local second, due, name, sum, gaps =
      string.match(value, '^(%d%d%d%d%d%d%d%d%d%d)(%d+) (%S+) (%d+) (%S*)$')
    debt = due - (time[1] - second) * 1000000 * rate - tick
    if debt > 0 then
      period, taken, holes = name, sum, gaps
    else
      debt = 0
    end
  end
  local over = debt - room
  if over > 0 then return over, debt end
  return 0, debt, function()
    debt = debt + cost
    taken = string.format('%.0f', taken + cost)
    redis.call('SET', key,
      string.format('%s%.0f %s %s %s', time[1], tick + debt, period, taken, holes),
      'PX', math.ceil(debt / rate / 1000))
    return debt, nil, period .. ' ' .. taken
  end
end
