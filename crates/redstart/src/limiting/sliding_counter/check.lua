-- Takes from one sliding counter, or changes nothing. After now.lua and rule.lua.
--
-- KEYS     1  the counters
-- ARGV     1  cost
--          2  limit
--          3  window in ms
-- Returns  {ms to wait, estimate * window, ms until all is free}
--          or {0, estimate * window after taking, ms until all is free, receipt}
local wait, estimate, commit, reset = sliding_counter(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if wait > 0 then return { wait, estimate, reset } end
return { 0, commit() }
