-- Fragment: a token bucket whose tokens come back every whole number of milliseconds.
--
-- The remaining TTL of the key is the debt: nothing is stored, no clock is read, and a full bucket has no key.
--
-- Defines  whole_look(key, room) -> how much the debt exceeds the room in ms (above 0: refused), debt in ms
--          whole_take(key, cost, debt) -> debt afterwards in ms
local function whole_look(key, room)
  local debt = redis.call('PTTL', key)
  if debt < 0 then debt = 0 end
  return debt - room, debt
end

local function whole_take(key, cost, debt)
  local after = debt + cost
  -- A key that exists needs only another end.
  if debt > 0 then
    redis.call('PEXPIRE', key, after)
  else
    redis.call('SET', key, '', 'PX', after)
  end
  return after
end
