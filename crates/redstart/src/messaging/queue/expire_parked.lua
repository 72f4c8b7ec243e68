-- Buries parked jobs of one kind that no worker could run within the limit.
--
-- KEYS  1-16 as in place.lua  17 parked jobs of that kind, by their limit  18 parked
-- ARGV  1-5 as in place.lua  6 kind  7 how many at most
-- Returns  how many were buried
local now = now()
local late = redis.call('ZRANGE', KEYS[17], '-inf', format('%.0f', now), 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[7]))
local looked = 0
for _, id in ipairs(late) do
  if is_enough() then break end
  looked = looked + 1
  local record = redis.call('HGET', jobs, id)
  if record and state(record) == 'p' then
    if flag(record, 32) then free_group(record) end
    local why = redis.call('HGET', details, id .. 'y')
    bury(without_flag(record, 32), 'no worker could run it: ' .. ARGV[6] .. (why and ': ' .. why or ''), now)
  end
end
if looked > 0 then redis.call('ZREMRANGEBYRANK', KEYS[17], 0, looked - 1) end
local first = redis.call('ZRANGE', KEYS[17], 0, 0, 'WITHSCORES')[2]
if first then
  redis.call('ZADD', KEYS[18], first, ARGV[6])
else
  redis.call('ZREM', KEYS[18], ARGV[6])
end
return looked
