-- Looks at the circuit, and fails if the server refuses writes. After now.lua and circuit.lua, which state KEYS and ARGV[1-4].
--
-- An instance that breaks alone asks with this one: a server that answers questions and takes no reports is of no use to it.
--
-- Returns  {state, generation, us until the end of open}
redis.call('HSET', KEYS[1], 'asked', 1)
redis.call('HDEL', KEYS[1], 'asked')
return describe()
