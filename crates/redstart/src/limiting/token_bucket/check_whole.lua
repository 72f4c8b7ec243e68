-- Takes from one bucket of whole milliseconds, or changes nothing.
-- KEYS[1] the bucket
-- ARGV    cost, room in ms
-- Returns the debt after taking, or minus the wait
local wait, _, commit = whole_bucket(KEYS[1], ARGV[1], ARGV[2])
if wait > 0 then return -wait end
return commit()
