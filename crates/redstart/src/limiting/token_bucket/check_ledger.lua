-- Takes from one bucket that keeps an account, or changes nothing.
-- KEYS[1] the bucket
-- ARGV    cost, room in units, rate in units per microsecond, name of a new busy period
-- Returns {wait, debt} or {0, debt after taking, 0, receipt}
local wait, debt, commit = ledger_bucket(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if wait > 0 then return { wait, debt } end
local after, _, receipt = commit()
return { 0, after, 0, receipt }
