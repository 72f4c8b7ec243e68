-- Stores a loaded value, unless its lease has ended.
--
-- An invalidation, the fence of a write-through and the end of the lease all remove the token. What was loaded
-- before any of them must not be stored.
--
-- KEYS[1] the entry
-- KEYS[2] the lease
-- KEYS[3] the caller's entry beside one of another fingerprint
-- ARGV[1] the token under which it was loaded
-- ARGV[2] the new entry
-- ARGV[3] how long it is kept, ms
-- ARGV[4] the channel that wakes waiting processes
--
-- Returns 1 stored, 0 refused
local entry = ARGV[2]
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  -- The reply to the first attempt may have been lost: then this very entry is there.
  local stamp = string.sub(entry, 21, 28)
  if redis.call('GETRANGE', KEYS[1], 20, 27) == stamp or redis.call('GETRANGE', KEYS[3], 20, 27) == stamp then
    return 1
  end
  return 0
end
local head = redis.call('GETRANGE', KEYS[1], 0, 35)
local key = KEYS[1]
if string.sub(head, 1, 3) == 'RC\1' then
  -- Entries of other fingerprints stay good: the group is kept, and an entry of another version is not replaced.
  entry = string.sub(entry, 1, 28) .. string.sub(head, 29, 36) .. string.sub(entry, 37)
  if string.sub(head, 5, 12) ~= string.sub(entry, 5, 12) then
    key = KEYS[3]
  end
end
redis.call('SET', key, entry, 'PX', ARGV[3])
redis.call('UNLINK', KEYS[2])
redis.call('SPUBLISH', ARGV[4], 'filled')
return 1
