-- Takes or keeps the ownership of a shard.
--
-- It only keeps workers from getting in each other's way. What makes a late worker harmless is the epoch in
-- the database.
--
-- KEYS[1] the owner
-- ARGV[1] the worker's token
-- ARGV[2] how long it lasts, ms
--
-- Returns 0 it is ours, or how many ms it is still another's
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then
  return math.max(1, redis.call('PTTL', KEYS[1]))
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 0
