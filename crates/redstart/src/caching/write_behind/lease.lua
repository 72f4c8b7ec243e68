-- Before a value is loaded from the database: a token that any write takes away.
--
-- KEYS[1] the value
-- KEYS[2] the lease
-- ARGV[1] a fresh token
-- ARGV[2] how long it lasts, ms
--
-- Returns the value, or false with the lease taken
local value = redis.call('GET', KEYS[1])
if value then
  return value
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return false
