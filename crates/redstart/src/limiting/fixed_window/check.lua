-- Takes from one fixed window, or changes nothing.
-- KEYS[1] the counter
-- ARGV    cost, limit, window in ms
-- Returns {wait, count, reset} or {0, count after taking, reset, receipt}
local wait, used, commit, reset = fixed_window(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if wait > 0 then return { wait, used, reset } end
return { 0, commit() }
