-- Counts the users of several days together. The combined bitmap exists only within this script.
-- KEYS[1] a name to build under  KEYS[2..] the days
-- ARGV[1] OR (active on any of them) or AND (on all of them)
-- Returns how many
if #KEYS == 2 then
  return redis.call('BITCOUNT', KEYS[2])
end
redis.call('BITOP', ARGV[1], KEYS[1], unpack(KEYS, 2))
local count = redis.call('BITCOUNT', KEYS[1])
redis.call('DEL', KEYS[1])
return count
