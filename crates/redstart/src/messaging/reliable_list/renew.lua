-- Registers a consumer or renews its lease.
--
-- KEYS  1 consumers, by the end of their lease  2 consumers that were found silent
-- ARGV  1 consumer  2 lease in microseconds
-- Returns  the consumers to check: their lease has ended, or they were found silent before
local now = now()
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 100)
