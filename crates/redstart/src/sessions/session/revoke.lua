-- Ends sessions.
--
-- KEYS  1 the index of their account, a sorted set  2... the sessions, hashes
-- ARGV  1 digest of a token that must open the first of them, or ''  2... their ids, in the same order
-- Returns  how many of them lived
if ARGV[1] ~= '' and not open(KEYS[2], KEYS[1], ARGV[2], ARGV[1]) then return 0 end
redis.call('ZREM', KEYS[1], unpack(ARGV, 2))
return redis.call('UNLINK', unpack(KEYS, 2))
