-- Ends holds that are over and counts.
-- KEYS    sale, requests, holds, users
-- Returns {free, held, sold, lent, moves}, or nothing if there is no sale
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local now = clock()
repeat until reap(now) < 200
local counts = redis.call('HMGET', KEYS[1], 'free', 'held', 'sold', 'lent', 'moves')
for i = 1, 5 do counts[i] = tonumber(counts[i]) end
return counts
