-- Adds or looks up elements in the server's own filter, after checking the partition.
-- KEYS[1] the header  KEYS[2] the filter
-- ARGV[1] the configuration  ARGV[2] BF.MADD or BF.MEXISTS  ARGV[3..] the elements
-- Returns {what, number, flags} as bits.lua says
local head = redis.call('GETRANGE', KEYS[1], 0, 45)
if #head < 46 then
  return {'missing', 0, ''}
end
if string.sub(head, 1, 36) ~= ARGV[1] then
  return {'other', 0, ''}
end
local state, following = string.sub(head, 37, 37), struct.unpack('<I4', head, 43)
if state == 'm' then
  return {'moved', following, ''}
end
-- For the server a filter that does not exist contains nothing, which would be a wrong "no".
if redis.call('EXISTS', KEYS[2]) == 0 then
  return {'missing', 0, ''}
end
local flags = {}
for from = 3, #ARGV, 5000 do
  local reply = redis.call(ARGV[2], KEYS[2], unpack(ARGV, from, math.min(from + 4999, #ARGV)))
  for i = 1, #reply do
    if type(reply[i]) == 'table' and reply[i].err then
      return redis.error_reply(reply[i].err)
    end
    flags[#flags + 1] = (reply[i] == 1 or reply[i] == true) and '1' or '0'
  end
end
return {state == 'b' and ARGV[2] == 'BF.MADD' and 'building' or 'ok', following, table.concat(flags)}
