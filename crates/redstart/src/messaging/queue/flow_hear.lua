-- A parent hears what became of a child in another queue. What it has heard before changes nothing.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6 the parent's id  7 policy and 8 number of the child  9 when it ended: 16 digits
--       10 d done, z a dead letter, otherwise gone  11 its result, or why
-- Returns  1
local id, mark = ARGV[6], ARGV[6] .. 'm' .. ARGV[8]
local heard = redis.call('HGET', details, mark)
-- A child is counted once, whatever becomes of its dead letter. One that fails its parent is not counted, but is heard once.
if heard and (heard == 'counted' or heard == ARGV[9]) then return 1 end
if redis.call('HEXISTS', jobs, id) == 0 then return 1 end
local counted = tell_parent(id, ARGV[7], ARGV[8], ARGV[10], ARGV[11], now())
redis.call('HSET', details, mark, counted and 'counted' or ARGV[9])
return 1
