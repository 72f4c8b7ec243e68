-- Takes from one sliding counter, or changes nothing.
-- KEYS[1] the counters
-- ARGV    cost, limit, window in ms
-- Returns {wait, estimate * window, reset} or {0, the same after taking, reset, receipt}
local wait, estimate, commit, reset = sliding_counter(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if wait > 0 then return { wait, estimate, reset } end
return { 0, commit() }
