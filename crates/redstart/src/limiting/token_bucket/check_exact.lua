-- Takes from one bucket of any rate, or changes nothing.
-- KEYS[1] the bucket
-- ARGV    cost, room in units, rate in units per microsecond
-- Returns the debt after taking, or minus the wait, in units
local wait, _, commit = exact_bucket(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if wait > 0 then return -wait end
return commit()
