-- Takes from one token bucket that keeps an account, or changes nothing. After ledger.lua.
--
-- KEYS     1  the bucket
-- ARGV     1  cost: units * parts per unit
--          2  room: (capacity - units) * parts per unit
--          3  rate: parts that are paid back each microsecond
--          4  name of a new busy period, unique to this request
-- Returns  {parts to wait for, debt} or {0, debt after taking, 0, receipt}
local wait, debt, commit = ledger_bucket(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if wait > 0 then return { wait, debt } end
local after, _, receipt = commit()
return { 0, after, 0, receipt }
