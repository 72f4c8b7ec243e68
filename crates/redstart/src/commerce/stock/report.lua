-- Ends holds that are over, up to a bound, and counts. After now.lua and sale.lua, which states KEYS[1-5].
--
-- Returns  {free, held, sold, lent, moves, 1 if there may be more holds that are over, id of the sale, units with which the
--          sale of all shards was opened or -1 if that is not known, units that were added here since}, or nil if there is no
--          sale. Not known are also the units of a shard that was lost and put on sale again, or opened without `added`.
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local more = reap() == BATCH and 1 or 0
local counts = redis.call('HMGET', KEYS[1], 'free', 'held', 'sold', 'lent', 'moves')
for i = 1, 5 do counts[i] = tonumber(counts[i]) end
counts[6] = more
local sale = redis.call('HMGET', KEYS[1], 'id', 'units', 'added', 'remade')
counts[7] = sale[1] or ''
local known = sale[2] and sale[3] and not sale[4]
counts[8], counts[9] = known and tonumber(sale[2]) or -1, tonumber(sale[3] or 0)
return counts
