-- Puts back reservations whose lease has ended, and reserves the first item.
--
-- A record is 16 digits of time, 16 of id, 11 characters of priority, 8 digits that count its reservations, and the
-- item. The count makes the record of each reservation a different one, so that an old reservation cannot settle a
-- newer one of the same item.
--
-- KEYS  1 the queue  2 reserved, by the end of the lease
-- ARGV  1 lease in microseconds
-- Returns  {record} or {false, microseconds until a reservation ends (-1 = there is none)}
local now = now()
put_back(KEYS[1], KEYS[2], now)
local record = redis.call('ZPOPMIN', KEYS[1])[1]
if record then
  local count = ((tonumber(string.sub(record, 44, 51)) or 0) + 1) % 100000000
  record = string.sub(record, 1, 43) .. string.format('%08d', count) .. string.sub(record, 52)
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[1]), record)
  return { record }
end
return { false, until_ended(KEYS[2], now) }
