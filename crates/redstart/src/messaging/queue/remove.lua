-- Removes a waiting job and frees its unique key.
--
-- KEYS  1 the container it was found in  2 unique
-- ARGV  1 'list' or 'zset'  2 the whole record
-- Returns  1 removed, 0 it is no longer there
local gone
if ARGV[1] == 'list' then
  gone = redis.call('LREM', KEYS[1], 1, ARGV[2])
else
  gone = redis.call('ZREM', KEYS[1], ARGV[2])
end
if gone == 1 and well_formed(ARGV[2]) then free_unique(KEYS[2], ARGV[2]) end
return gone
