-- Adds units to a running sale, once for each id.
--
-- KEYS     1  sale
--          2  restocks (hash: id -> units)
-- ARGV     1  id
--          2  units
-- Returns  1 if they were added, 0 if they had been, -1 if there is no sale
local ends = redis.call('HGET', KEYS[1], 'ends')
if not ends then return -1 end
if redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('PEXPIREAT', KEYS[2], ends)
redis.call('HINCRBY', KEYS[1], 'free', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'moves', 1)
return 1
