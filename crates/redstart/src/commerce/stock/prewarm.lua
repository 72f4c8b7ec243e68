-- Puts a shard's share of the units on sale, unless a sale is running there. After now.lua.
--
-- KEYS     1  sale
--          2  requests  3  holds  4  users  5  loans: of an earlier sale that is gone
--          6  expired (stream)
--          7  restocks
-- ARGV     1  id of the sale, the same in all shards and never used again
--          2  units of all shards
--          3  units of this shard
--          4  end of the sale in ms: a copy of the request that arrives later starts no sale
--          5  1 if the sale is closed, else 0
--          6  1 if all shards had the sale before: this one was lost if it is missing
-- Returns  {1 if they were put on sale, 0 if a sale is running, -1 if this one would be over, then of the sale that is
--          there now: id, units of all shards, end in ms, 1 if it is closed}
local found = redis.call('HMGET', KEYS[1], 'id', 'units', 'ends', 'closed')
if found[3] then
  if ARGV[6] == '1' and found[1] == ARGV[1] then redis.call('HSET', KEYS[1], 'whole', 1) end
  return { 0, found[1] or '', tonumber(found[2] or 0), tonumber(found[3]), found[4] and 1 or 0 }
end
local ends = tonumber(ARGV[4])
if ends <= math.floor(now() / 1000) then return { -1, ARGV[1], tonumber(ARGV[2]), ends, 0 } end
-- What is left of an earlier sale, whose key went before the others, is not part of this one. Its restocks stay: their ids
-- must not add anything here.
local left = redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
-- The stream is read during this sale too.
local keep = string.format('%.0f', ends + 86400000)
redis.call('PEXPIREAT', KEYS[6], keep)
redis.call('PEXPIREAT', KEYS[7], keep, 'GT')
redis.call('HSET', KEYS[1], 'free', ARGV[3], 'held', 0, 'sold', 0, 'lent', 0, 'moves', 0,
  'ends', ARGV[4], 'id', ARGV[1], 'units', ARGV[2], 'added', 0)
-- Nobody knows what was sold, lent and restocked here before.
if ARGV[6] == '1' then redis.call('HSET', KEYS[1], 'whole', 1) end
if ARGV[6] == '1' or left > 0 then redis.call('HSET', KEYS[1], 'remade', 1) end
if ARGV[5] == '1' then redis.call('HSET', KEYS[1], 'closed', 1) end
redis.call('PEXPIREAT', KEYS[1], ARGV[4])
return { 1, ARGV[1], tonumber(ARGV[2]), ends, tonumber(ARGV[5]) }
