-- Enqueues the runs of one tick and moves the entry to its next tick. Of several workers that saw the tick one wins:
-- the entry must still be at that tick. The id of a run says which tick of which entry it is: if the entry is at an earlier
-- tick again, after a fail-over or because it was put again, runs that are still known are not added a second time.
--
-- KEYS  1-16 as in place.lua  17 cron
-- ARGV  1-5 as in place.lua  6 entry  7 the tick that was seen  8 the next ('' = never)  9... the records from byte 35 on
-- Returns  1 fired, 0 another worker did
local current = redis.call('ZSCORE', KEYS[17], ARGV[6])
if not current or format('%.0f', tonumber(current)) ~= ARGV[7] then return 0 end
if ARGV[8] == '' then
  redis.call('ZREM', KEYS[17], ARGV[6])
else
  redis.call('ZADD', KEYS[17], ARGV[8], ARGV[6])
end
local time = digits(now())
local records, ids = {}, {}
for i = 9, #ARGV do
  local id = sub(ARGV[i], 1, 16)
  if redis.call('HEXISTS', jobs, id) + redis.call('HEXISTS', ended, id) == 0 then
    records[#records + 1] = 'Jr' .. time .. time .. ARGV[i]
    ids[#ids + 1] = id
  end
end
make_ready('RPUSH', records)
event('added', table.concat(ids), records[1] and kind_of(records[1]))
wake(#records)
return 1
