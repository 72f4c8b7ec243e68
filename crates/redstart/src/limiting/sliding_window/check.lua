-- Takes from one sliding window, or changes nothing. After now.lua and rule.lua.
--
-- KEYS     1  the log
-- ARGV     1  cost
--          2  limit
--          3  window in us
--          4  id of this request
-- Returns  {us to wait, count, us until all is free} or {0, count after taking, us until all is free, receipt}
local wait, used, commit, reset = sliding_window(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if wait > 0 then return { wait, used, reset } end
return { 0, commit() }
