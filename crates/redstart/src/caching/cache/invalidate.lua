-- Removes a value, and the right to store one that was loaded before now.
--
-- KEYS[1] the value
-- KEYS[2] the lease
-- ARGV[1] the channel that wakes those who wait
-- ARGV[2] the classic channel that tells first-level caches
-- ARGV[3] what to say there
--
-- Returns how many values were removed
local removed = redis.call('UNLINK', KEYS[1])
redis.call('UNLINK', KEYS[2])
redis.call('SPUBLISH', ARGV[1], 'invalidated')
redis.call('PUBLISH', ARGV[2], ARGV[3])
return removed
