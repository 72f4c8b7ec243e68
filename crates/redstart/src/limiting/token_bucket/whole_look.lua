-- Token bucket whose tokens come back every whole number of milliseconds.
-- The remaining TTL of the key IS the debt: nothing is stored, no clock is read, a full bucket is no key.
-- Takes  key; cost and room (capacity - cost) in ms
-- Leaves debt, and how much of it is over the room, in ms
local debt = redis.call('PTTL', key)
if debt < 0 then debt = 0 end
local over = debt - room
