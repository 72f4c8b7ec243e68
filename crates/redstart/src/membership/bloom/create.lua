-- Creates an empty partition, unless it exists.
-- KEYS[1] its first layer
-- ARGV[1] its configuration, 36 bytes  ARGV[2] the offset of its last bit
-- Returns 1 if the partition exists now, 0 if one with another configuration exists
local there = redis.call('GETRANGE', KEYS[1], 0, 35)
if there ~= '' then
  return there == ARGV[1] and 1 or 0
end
-- The first SETBIT allocates exactly what is asked for; growing later would allocate up to twice as much.
redis.call('SETBIT', KEYS[1], ARGV[2], 0)
redis.call('SETRANGE', KEYS[1], 0, ARGV[1] .. 'o' .. string.char(1) .. struct.pack('<I4I4', 0, 0))
return 1
