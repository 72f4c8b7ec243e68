-- Takes from one sliding window, or changes nothing.
-- KEYS[1] the log
-- ARGV    cost, limit, window in us, id of this request
-- Returns {wait, count, reset} or {0, count after taking, reset, receipt}
local wait, used, commit, reset = sliding_window(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if wait > 0 then return { wait, used, reset } end
return { 0, commit() }
