-- The sale that a shard has, and the time there. Changes nothing. After now.lua.
--
-- KEYS     1  sale
-- Returns  {time in ms, then of the sale: id, units of all shards, end in ms, 1 if it is closed, 1 if all shards had it; nil
--          each if there is none}
local found = redis.call('HMGET', KEYS[1], 'id', 'units', 'ends', 'closed', 'whole')
return { math.floor(now() / 1000), found[1], found[2], found[3], found[4], found[5] }
