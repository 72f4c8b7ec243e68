-- Adds an item. Among equal priorities the older one comes first.
--
-- KEYS  1 the queue
-- ARGV  1 wake channel  2 priority  3 the item's id  4 the item
-- Returns  how many wait
local record = string.format('%016.0f', now()) .. ARGV[3] .. string.format('%+011d', ARGV[2]) .. '00000000' .. ARGV[4]
redis.call('ZADD', KEYS[1], ARGV[2], record)
redis.call('SPUBLISH', ARGV[1], '')
return redis.call('ZCARD', KEYS[1])
