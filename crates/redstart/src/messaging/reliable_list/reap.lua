-- Puts back what a consumer took whose lease is over, to be taken next.
--
-- A consumer that was stopped in the middle of a blocking take may be given an item after this, so it is looked
-- after again, each time after twice as long, and forgotten only a day after its lease. Those that were looked
-- after stand behind those that were not, however many they are.
--
-- KEYS  1 the list  2 consumers, by when to look after them  3 what that consumer took
--       4 those that were found silent, by the end of their lease
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
local died = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[1]) or ends)
if ARGV[2] == '1' or died + 86400000000 < now then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
else
  redis.call('ZADD', KEYS[4], string.format('%.0f', died), ARGV[1])
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + math.max(1000000, now - died)), ARGV[1])
end
return #items
