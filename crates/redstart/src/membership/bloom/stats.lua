-- Counts the bits of a partition.
-- KEYS[1..l] its layers
-- ARGV[1] the configuration of the first
-- Returns nil if the partition does not exist or has other layers; else for each layer: elements added, bits set
local head = redis.call('GETRANGE', KEYS[1], 0, 45)
if #head < 46 or string.sub(head, 1, 36) ~= ARGV[1] or string.byte(head, 38) ~= #KEYS then
  return nil
end
local reply = {}
for i, key in ipairs(KEYS) do
  reply[2 * i - 1] = struct.unpack('<I4', redis.call('GETRANGE', key, 38, 41))
  reply[2 * i] = redis.call('BITCOUNT', key, 46, -1)
end
return reply
