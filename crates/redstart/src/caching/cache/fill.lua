-- Stores a loaded value, if nothing has ended the lease meanwhile.
--
-- An invalidation, a write-through's fence and the lease's own end all remove the token; what was loaded
-- before any of them must not be stored.
--
-- KEYS[1] the value
-- KEYS[2] the lease
-- ARGV[1] the token under which it was loaded
-- ARGV[2] the entry
-- ARGV[3] how long it is kept, ms
-- ARGV[4] the channel that wakes those who wait
--
-- Returns 1 stored, 0 refused
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  -- The reply to the first attempt may have been lost: then this very entry is there.
  if redis.call('GETRANGE', KEYS[1], 8, 24) == string.sub(ARGV[2], 9, 25) then
    return 1
  end
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('UNLINK', KEYS[2])
redis.call('SPUBLISH', ARGV[4], 'filled')
return 1
