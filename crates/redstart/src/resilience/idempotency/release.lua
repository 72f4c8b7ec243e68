-- Frees a request that was not carried out.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  ms for which a claim of this run that arrives late is refused
-- Returns  1 if the run had the request
local found = redis.call('HMGET', KEYS[1], 't', 'r')
if found[2] then return 0 end
local held = found[1] == ARGV[1]
-- Marks of other runs stay: their claims may still be on their way.
if held then redis.call('HDEL', KEYS[1], 'f', 't', 'e', 'u') end
-- A claim of this run may still be on its way, also if an earlier one arrived, and nobody would ever free it.
if redis.call('HLEN', KEYS[1]) < 1000 then redis.call('HSET', KEYS[1], 'v' .. ARGV[1], 1) end
if held or not found[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return held and 1 or 0
