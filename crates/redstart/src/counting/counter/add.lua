-- Adds to a counter and renews its lifetime.
-- KEYS[1] the count
-- ARGV[1] how many  ARGV[2] lifetime in milliseconds, 0 for ever
-- Returns the new count
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if ARGV[2] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return count
