-- Decides a loan once and for all, at the shard that gets it: accepted, or refused.
--
-- KEYS     1  sale
--          2  decisions (hash: token -> units accepted, 0 if refused)
-- ARGV     1  token
--          2  units; 0 refuses a loan that was not accepted yet
-- Returns  the decision: the units accepted
local decided = redis.call('HGET', KEYS[2], ARGV[1])
if decided then return tonumber(decided) end
local ends = redis.call('HGET', KEYS[1], 'ends')
local qty = tonumber(ARGV[2])
if not ends then return 0 end
if qty > 0 then
  redis.call('HINCRBY', KEYS[1], 'free', qty)
  redis.call('HINCRBY', KEYS[1], 'moves', 1)
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIREAT', KEYS[2], ends)
return qty
