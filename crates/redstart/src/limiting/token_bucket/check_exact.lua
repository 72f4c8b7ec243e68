-- Takes from one token bucket of any rate, or changes nothing. After exact.lua.
--
-- KEYS     1  the bucket
-- ARGV     1  cost: units * parts per unit
--          2  room: (capacity - units) * parts per unit
--          3  rate: parts that are paid back each microsecond
-- Returns  the debt after taking in parts, or minus the parts to wait for
local over, debt, second, tick = exact_look(KEYS[1], ARGV[2], ARGV[3])
if over > 0 then return -over end
return exact_take(KEYS[1], ARGV[1], ARGV[3], debt, second, tick)
