-- Adds units to a running sale, once for each id. Ids are kept for a day after the sale: a copy of the request that arrives
-- during the next one adds nothing there.
--
-- KEYS     1  sale
--          2  restocks (hash: id -> units)
-- ARGV     1  id
--          2  units
-- Returns  1 if they were added, 0 if they had been, -1 if there is no sale
local ends = redis.call('HGET', KEYS[1], 'ends')
if not ends then return -1 end
if redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2]) == 0 then return 0 end
-- An earlier sale may have ended later than this one, if its key was lost.
local keep = ends + 86400000
if redis.call('PEXPIRETIME', KEYS[2]) < keep then
  redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', keep))
end
redis.call('HINCRBY', KEYS[1], 'free', ARGV[2])
-- Without a count from the beginning, the sum of what was added is not known.
if redis.call('HEXISTS', KEYS[1], 'added') == 1 then redis.call('HINCRBY', KEYS[1], 'added', ARGV[2]) end
redis.call('HINCRBY', KEYS[1], 'moves', 1)
return 1
