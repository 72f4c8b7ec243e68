-- Token bucket of any rate. A token is a whole number of units, and `rate` units are paid back each
-- microsecond, so that three tokens a second are exactly that.
-- Stored: the second of the last take (10 digits), then the units from the start of that second until the
-- debt is paid. The TTL is never shorter than the debt.
-- Takes  key; cost and room (capacity - cost) in units; rate in units per us
-- Leaves debt, and how much of it is over the room, in units; time, and tick: the units since its second began
local time = redis.call('TIME')
local value = redis.call('GET', key)
local tick = time[2] * rate
local debt = 0
if value then
  debt = string.sub(value, 11) - (time[1] - string.sub(value, 1, 10)) * 1000000 * rate - tick
  if debt < 0 then debt = 0 end
end
local over = debt - room
