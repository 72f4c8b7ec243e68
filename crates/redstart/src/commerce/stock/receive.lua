-- Decides a loan once and for all, at the shard that gets it: accepted, or refused.
--
-- KEYS     1  sale
--          2  decisions (hash: token -> units accepted, 0 if refused)
-- ARGV     1  token
--          2  units; 0 refuses a loan that was not accepted yet
--          3  id of the sale that the loan is of
--          4  its end in ms
-- Returns  the decision: the units accepted
local decided = redis.call('HGET', KEYS[2], ARGV[1])
if decided then return tonumber(decided) end
local sale = redis.call('HMGET', KEYS[1], 'ends', 'id')
local qty = tonumber(ARGV[2])
if not sale[1] then
  -- This shard may be made again, as part of the same sale: the loan stays refused.
  redis.call('HSET', KEYS[2], ARGV[1], 0)
  redis.call('PEXPIREAT', KEYS[2], ARGV[4])
  return 0
end
-- Another sale. Ids are not used again, so the loan stays refused without a record.
if (sale[2] or '') ~= ARGV[3] then return 0 end
if qty > 0 then
  redis.call('HINCRBY', KEYS[1], 'free', qty)
  redis.call('HINCRBY', KEYS[1], 'moves', 1)
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIREAT', KEYS[2], sale[1])
return qty
