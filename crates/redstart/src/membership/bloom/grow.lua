-- Adds a layer to a partition, if it has as many as the caller expects.
-- KEYS[1] the first layer  KEYS[2] the new one
-- ARGV[1] the partition's configuration  ARGV[2] the number of layers  ARGV[3] the new one's configuration
-- ARGV[4] the offset of its last bit
-- Returns the number of layers now, 0 if the partition does not exist
if redis.call('GETRANGE', KEYS[1], 0, 35) ~= ARGV[1] then
  return 0
end
local layers = string.byte(redis.call('GETRANGE', KEYS[1], 37, 37))
if layers ~= tonumber(ARGV[2]) or redis.call('GETRANGE', KEYS[1], 36, 36) == 'm' then
  return layers
end
redis.call('DEL', KEYS[2])
redis.call('SETBIT', KEYS[2], ARGV[4], 0)
redis.call('SETRANGE', KEYS[2], 0, ARGV[3] .. 'o' .. string.char(1) .. struct.pack('<I4I4', 0, 0))
redis.call('SETRANGE', KEYS[1], 37, string.char(layers + 1))
return layers + 1
