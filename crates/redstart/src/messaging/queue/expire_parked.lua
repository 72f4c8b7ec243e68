-- Buries parked jobs of one kind that no worker could run within the limit.
--
-- KEYS  1 parked jobs of that kind, by their limit  2 parked  3 dead  4 unique
-- ARGV  1 kind  2 how many at most
-- Returns  how many were buried
local now = now()
local late = redis.call('ZRANGE', KEYS[1], '-inf', format('%.0f', now), 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[2]))
for _, record in ipairs(late) do
  bury(KEYS[3], record, 'no worker could run it: ' .. ARGV[1], now)
  free_unique(KEYS[4], record)
end
if #late > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #late - 1) end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if first then
  redis.call('ZADD', KEYS[2], first, ARGV[1])
else
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return #late
