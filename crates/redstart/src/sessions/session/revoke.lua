-- Ends sessions.
--
-- KEYS  1 the index of their user  2... the sessions
-- ARGV  their names in the index, in the same order
-- Returns  how many of them lived
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('DEL', unpack(KEYS, 2))
