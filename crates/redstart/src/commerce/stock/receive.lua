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
local qty, ends = tonumber(ARGV[2]), tonumber(ARGV[4])
-- No sale, or another one. This shard may become a part of the loan's sale later, if it is made again or its clock is
-- behind: the loan stays refused.
if not sale[1] or (sale[2] or '') ~= ARGV[3] then qty = 0 end
if qty > 0 then
  redis.call('HINCRBY', KEYS[1], 'free', qty)
  redis.call('HINCRBY', KEYS[1], 'moves', 1)
end
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', qty))
-- Not before the decisions about other sales may be forgotten.
if redis.call('PEXPIRETIME', KEYS[2]) < ends then redis.call('PEXPIREAT', KEYS[2], ARGV[4]) end
return qty
