-- Reads how many layers a partition has.
-- KEYS[1] its first layer
-- ARGV[1] its configuration
-- Returns the number, 0 if the partition does not exist or has moved
local head = redis.call('GETRANGE', KEYS[1], 0, 45)
if #head < 46 or string.sub(head, 1, 36) ~= ARGV[1] or string.sub(head, 37, 37) == 'm' then
  return 0
end
return string.byte(head, 38)
