-- Enqueues the runs of one tick and moves the entry to its next tick. Of several workers that saw the tick one wins:
-- the entry must still be at that tick.
--
-- KEYS  1 cron  2 ready  3 ranked  4 idle
-- ARGV  1 wake channel  2 boost in microseconds  3 entry  4 the tick that was seen  5 the next ('' = never)
--       6... the records from byte 18 on
-- Returns  1 fired, 0 another worker did
local current = redis.call('ZSCORE', KEYS[1], ARGV[3])
if not current or format('%.0f', tonumber(current)) ~= ARGV[4] then return 0 end
if ARGV[5] == '' then
  redis.call('ZREM', KEYS[1], ARGV[3])
else
  redis.call('ZADD', KEYS[1], ARGV[5], ARGV[3])
end
local head = 'J' .. digits(now())
local records = {}
for i = 6, #ARGV do records[#records + 1] = head .. ARGV[i] end
make_ready('RPUSH', KEYS[2], KEYS[3], tonumber(ARGV[2]), records)
wake(KEYS[4], ARGV[1], #records)
return 1
