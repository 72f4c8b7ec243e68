-- Before a value is loaded from the database: a token in its place, which any write replaces.
--
-- KEYS[1] the value, or '?' and the token of the loader
-- ARGV[1] '?' and a fresh token
-- ARGV[2] how long it lasts, ms
--
-- Returns the value, or false with the lease taken
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 1) ~= '?' then
  return value
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
