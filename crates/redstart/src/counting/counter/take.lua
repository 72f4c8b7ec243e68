-- Reads a counter and sets it to 0; its TTL stays as it is.
-- KEYS[1] the count
-- ARGV    none
-- Returns the count
local count = redis.call('GET', KEYS[1])
if not count then
  return 0
end
redis.call('SET', KEYS[1], '0', 'KEEPTTL')
return count
