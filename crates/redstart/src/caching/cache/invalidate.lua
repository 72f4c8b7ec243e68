-- Removes an entry, and the right to store one that was loaded or written before now.
--
-- Entries of other fingerprints are good only beside this one, so they end with it.
--
-- KEYS[1] the entry
-- KEYS[2] the lease
-- KEYS[3] the caller's entry beside one of another fingerprint
-- KEYS[4] the fence: exists while a write-through is under way
-- ARGV[1] the channel that wakes waiting processes
-- ARGV[2] the classic channel that tells first levels
-- ARGV[3] the message for it
--
-- Returns how many entries were removed
local removed = redis.call('UNLINK', KEYS[1], KEYS[3])
redis.call('UNLINK', KEYS[2])
if redis.call('EXISTS', KEYS[4]) == 1 then
  -- Writers that are under way may have committed before this change, and nobody can say so: none of them may store its row.
  redis.call('ZREMRANGEBYSCORE', KEYS[4], 'inf', 'inf')
  redis.call('ZADD', KEYS[4], 'inf', 'm:' .. string.rep('\255', 8))
end
redis.call('SPUBLISH', ARGV[1], 'invalidated')
redis.call('PUBLISH', ARGV[2], ARGV[3])
return removed
