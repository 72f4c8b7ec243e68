-- Registers a consumer or prolongs its lease.
--
-- KEYS  1 consumers  2 those that were found silent
-- ARGV  1 consumer  2 lease in microseconds
-- Returns  the consumers to look after: their lease is over, or they were silent before
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 100)
