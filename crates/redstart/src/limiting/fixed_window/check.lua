-- Takes from one fixed window, or changes nothing. After rule.lua.
--
-- KEYS     1  the counter
-- ARGV     1  cost
--          2  limit
--          3  window in ms
-- Returns  {ms to wait, count, ms until the window ends} or {0, count after taking, ms until the window ends, receipt}
local wait, used, left = fixed_look(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if wait > 0 then return { wait, used, left } end
return { 0, fixed_take(KEYS[1], ARGV[1], ARGV[3], left) }
