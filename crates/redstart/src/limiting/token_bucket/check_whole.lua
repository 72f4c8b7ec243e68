-- Takes from one token bucket of whole milliseconds, or changes nothing. After whole.lua.
--
-- KEYS     1  the bucket
-- ARGV     1  cost: units * ms per unit
--          2  room: (capacity - units) * ms per unit
-- Returns  the debt after taking in ms, or minus the ms to wait
local over, debt = whole_look(KEYS[1], ARGV[2])
if over > 0 then return -over end
return whole_take(KEYS[1], ARGV[1], debt)
