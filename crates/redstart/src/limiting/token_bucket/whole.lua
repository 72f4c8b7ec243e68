-- Token bucket whose tokens come back every whole number of milliseconds.
-- The remaining TTL of the key IS the debt: nothing is stored, no clock is read, a full bucket is no key.
--
-- whole_bucket(key, cost, room): cost and room (capacity - cost) in milliseconds.
-- Returns wait (ms, 0 = may take), debt (ms), commit() -> debt afterwards.
local function whole_bucket(key, cost, room)
  local debt = redis.call('PTTL', key)
  if debt < 0 then debt = 0 end
  local over = debt - room
  if over > 0 then return over, debt end
  return 0, debt, function()
    redis.call('SET', key, '', 'PX', debt + cost)
    return debt + cost
  end
end
