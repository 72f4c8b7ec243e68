-- Puts back what a consumer took whose lease has ended, to be taken next.
--
-- A consumer that was stopped in the middle of a blocking take, or left after it gave one up, may be given an item after
-- this. It is therefore checked again, each time after twice as long, and forgotten a day after its lease. Consumers that were checked sort behind
-- those that were not.
--
-- KEYS  1 the list  2 consumers, by when to check them  3 what that consumer took
--       4 consumers that were found silent, by the end of their lease  5 numbers of the last looks, by consumer
-- ARGV  1 consumer  2 '1' = it unregisters, whatever its lease says; '2' = so it does, and a take of it may be under way
-- Returns  {how many items were put back, 1 if there are more}
local now = now()
local ends = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or 0)
if ARGV[2] == '0' and ends > now then return { 0, 0 } end
-- So many at a time. What the consumer took first is put back first.
local items = redis.call('LRANGE', KEYS[3], 0, 499)
if #items > 0 then
  redis.call('RPUSH', KEYS[1], unpack(items))
  redis.call('LTRIM', KEYS[3], #items, -1)
end
if #items == 500 then return { 500, 1 } end
local died = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[1]) or (ARGV[2] == '2' and now or ends))
if ARGV[2] == '1' or died + 86400000000 < now then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
  redis.call('ZREM', KEYS[5], ARGV[1])
else
  redis.call('ZADD', KEYS[4], string.format('%.0f', died), ARGV[1])
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + math.max(1000000, now - died)), ARGV[1])
end
return { #items, 0 }
