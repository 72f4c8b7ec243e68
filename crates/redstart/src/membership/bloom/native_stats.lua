-- Asks the server about its own filter.
-- KEYS[1] the header  KEYS[2] the filter
-- ARGV[1] the configuration
-- Returns nil if the partition does not exist, else: elements added, size in bytes, capacity
if redis.call('GETRANGE', KEYS[1], 0, 35) ~= ARGV[1] or redis.call('EXISTS', KEYS[2]) == 0 then
  return nil
end
local info, found = redis.call('BF.INFO', KEYS[2]), {}
for i = 1, #info, 2 do
  -- Some servers send names as status replies, others as strings.
  local name = type(info[i]) == 'table' and info[i].ok or info[i]
  found[name] = info[i + 1]
end
return {found['Number of items inserted'], found['Size'], found['Capacity']}
