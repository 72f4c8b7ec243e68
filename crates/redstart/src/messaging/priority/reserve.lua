-- Puts back reservations that ran out, and reserves the first item.
--
-- KEYS  1 the queue  2 reserved
-- ARGV  1 lease in microseconds
-- Returns  {record} or {false, microseconds until a reservation runs out (-1 = none)}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local over = redis.call('ZRANGE', KEYS[2], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 500)
for _, record in ipairs(over) do
  redis.call('ZADD', KEYS[1], tonumber(string.sub(record, 33, 43)) or 0, record)
  redis.call('ZREM', KEYS[2], record)
end
local record = redis.call('ZPOPMIN', KEYS[1])[1]
if record then
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[1]), record)
  return { record }
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
return { false, first and math.max(0, tonumber(first) - now) or -1 }
