-- Moves the count aside under an id until it is acknowledged. A drained count that is still outstanding is
-- returned unchanged, so a repeated call never hands out one count under two ids.
-- KEYS[1] the count  KEYS[2] the drained count: a hash of id and count
-- ARGV[1] the id to use for a new one
-- Returns {id, count}, or nil if there is nothing to drain
local out = redis.call('HMGET', KEYS[2], 'id', 'count')
if out[1] then
  return out
end
local count = redis.call('GET', KEYS[1])
if not count or count == '0' then
  return nil
end
-- No TTL: the count belongs to the receiver until it acknowledges it.
redis.call('HSET', KEYS[2], 'id', ARGV[1], 'count', count)
redis.call('SET', KEYS[1], '0', 'KEEPTTL')
return {ARGV[1], count}
