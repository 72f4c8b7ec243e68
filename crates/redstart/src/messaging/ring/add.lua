-- Adds an item to a ring, to be visited from the next lap on. The first item brings the mark of the lap.
--
-- KEYS  1 the ring
-- ARGV  1 the item with its prefix
-- Returns  how many items the ring has
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('RPUSH', KEYS[1], 'lap') end
return redis.call('RPUSH', KEYS[1], ARGV[1]) - 1
