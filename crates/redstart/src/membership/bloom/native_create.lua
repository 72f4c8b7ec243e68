-- Creates an empty partition of the server's own filters, unless it exists.
-- KEYS[1] its header  KEYS[2] the filter
-- ARGV[1] its configuration, 36 bytes  ARGV[2] error rate  ARGV[3] capacity
-- Returns 1 if the partition exists now, 0 if one with another configuration exists, or one that lost its header
local there = redis.call('GETRANGE', KEYS[1], 0, 35)
if there ~= '' then
  return there == ARGV[1] and 1 or 0
end
-- Its header was evicted: what it has must not be taken for an empty partition.
if redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
redis.call('BF.RESERVE', KEYS[2], ARGV[2], ARGV[3], 'EXPANSION', 2)
redis.call('SET', KEYS[1], ARGV[1] .. 'o' .. string.char(1) .. struct.pack('<I4I4', 0, 0))
return 1
