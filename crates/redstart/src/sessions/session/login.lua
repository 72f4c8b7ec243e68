-- Ends the session that a login replaces.
--
-- KEYS  1 the session, a hash  2 the index of its account, a sorted set
-- ARGV  1 the id of the session  2 digest of the token
-- Returns  false if the session is gone or the token is not its own, otherwise its last fields and values
if not open(KEYS[1], KEYS[2], ARGV[1], ARGV[2]) then return false end
local all = redis.call('HGETALL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('UNLINK', KEYS[1])
return all
