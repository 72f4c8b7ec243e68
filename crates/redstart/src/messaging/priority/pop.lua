-- Puts back reservations whose lease has ended, and removes the first item.
--
-- KEYS  1 the queue  2 reserved, by the end of the lease
-- Returns  {record} or {false, microseconds until a reservation ends (-1 = there is none)}
local now = now()
put_back(KEYS[1], KEYS[2], now)
local record = redis.call('ZPOPMIN', KEYS[1])[1]
if record then return { record } end
return { false, until_ended(KEYS[2], now) }
