-- Removes an item. The last one takes the mark and the count with it.
--
-- KEYS  1 the ring  2 laps
-- ARGV  1 the item with its prefix
-- Returns  how many were removed
local removed = redis.call('LREM', KEYS[1], 0, ARGV[1])
if redis.call('LLEN', KEYS[1]) == 1 then redis.call('DEL', KEYS[1], KEYS[2]) end
return removed
