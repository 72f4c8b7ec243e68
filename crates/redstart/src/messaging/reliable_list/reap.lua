-- Puts back what a consumer took whose lease is over, to be taken next.
--
-- A consumer that was stopped in the middle of a blocking take may be given an item after this, so its name is
-- forgotten only a day after its lease.
--
-- KEYS  1 the list  2 consumers  3 what that consumer took
-- ARGV  1 consumer  2 '1' = whatever its lease says: it leaves
-- Returns  how many items were put back
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ends = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or 0)
if ARGV[2] ~= '1' and ends > now then return 0 end
local items = redis.call('LRANGE', KEYS[3], 0, -1)
for first = 1, #items, 4000 do
  redis.call('RPUSH', KEYS[1], unpack(items, first, math.min(first + 3999, #items)))
end
redis.call('DEL', KEYS[3])
if ARGV[2] == '1' or ends + 86400000000 < now then redis.call('ZREM', KEYS[2], ARGV[1]) end
return #items
