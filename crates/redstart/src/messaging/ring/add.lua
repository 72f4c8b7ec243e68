-- Adds an item to a ring, to be visited in the next lap; the mark of the lap with the first one.
--
-- KEYS  1 the ring
-- ARGV  1 the item with its prefix
-- Returns  how many items the ring has
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('RPUSH', KEYS[1], 'lap') end
return redis.call('RPUSH', KEYS[1], ARGV[1]) - 1
