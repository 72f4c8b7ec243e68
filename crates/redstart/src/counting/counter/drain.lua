-- Moves the count into a batch that stays until it is acknowledged. The batch that is out already is
-- returned as it is, so a repeated call hands out nothing twice under two ids.
-- KEYS[1] the count  KEYS[2] the batch: a hash of id and count
-- ARGV[1] the id of a new batch
-- Returns {id, count}, or nil if there is nothing to hand out
local out = redis.call('HMGET', KEYS[2], 'id', 'count')
if out[1] then
  return out
end
local count = redis.call('GET', KEYS[1])
if not count or count == '0' then
  return nil
end
-- The batch has no TTL: it is somebody's counts until they say that they have them.
redis.call('HSET', KEYS[2], 'id', ARGV[1], 'count', count)
redis.call('SET', KEYS[1], '0', 'KEEPTTL')
return {ARGV[1], count}
