-- Puts an entry that cannot be applied into the dead-letter stream, and blocks its key.
--
-- KEYS[1] the dead-letter stream; an entry keeps its id, so burying it twice is burying it once
-- KEYS[2] the set of blocked keys
-- ARGV[1] the entry's id
-- ARGV[2] the key's name
-- ARGV[3] '+' or '-' and the bytes
-- ARGV[4] why
--
-- Returns 1 buried, 0 it was there
redis.call('SADD', KEYS[2], ARGV[2])
local there = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])
if #there > 0 then
  return 0
end
redis.call('XADD', KEYS[1], ARGV[1], 'k', ARGV[2], 'v', ARGV[3], 'why', ARGV[4])
return 1
