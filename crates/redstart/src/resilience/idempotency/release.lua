-- Frees a request that was not carried out.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  ms for which a claim of this run that arrives late is refused
-- Returns  1 if the run had the request
local found = redis.call('HMGET', KEYS[1], 't', 'r')
if found[1] == ARGV[1] and not found[2] then
  redis.call('DEL', KEYS[1])
  return 1
end
if not found[1] then
  -- The claim may still be on its way, and nobody would ever free it.
  redis.call('HSET', KEYS[1], 'v', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
