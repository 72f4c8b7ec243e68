-- Ends a loan at the shard that gave it, as the other one decided.
--
-- KEYS     1  sale
--          2  loans
--          3  ended loans (hash: token -> 1)
-- ARGV     1  token
--          2  1 if it was accepted, 0 if the units come back
-- Returns  1 if there was such a loan
local loan = redis.call('HGET', KEYS[2], ARGV[1])
if not loan then return 0 end
local qty, ends = string.match(loan, '^(%d+) %d+ %d+ (%d+)')
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], 1)
redis.call('PEXPIREAT', KEYS[3], ends)
-- A sale that was evicted is not begun again by what comes back to it.
if redis.call('HEXISTS', KEYS[1], 'ends') == 1 then
  redis.call('HINCRBY', KEYS[1], 'lent', -qty)
  redis.call('HINCRBY', KEYS[1], 'moves', 1)
  if ARGV[2] == '0' then redis.call('HINCRBY', KEYS[1], 'free', qty) end
end
return 1
