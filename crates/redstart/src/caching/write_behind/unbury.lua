-- Takes the dead letters of a key out of the stream and unblocks it; the last of them may go back to the log.
--
-- KEYS[1] the dead-letter stream
-- KEYS[2] the set of blocked keys
-- KEYS[3] the log
-- KEYS[4] the value
-- ARGV[1] the key's name
-- ARGV[2] 'retry' or 'discard'
--
-- Returns how many letters there were
local count, last = 0, nil
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local fields = entry[2]
  if fields[2] == ARGV[1] then
    count = count + 1
    last = fields[4]
    redis.call('XDEL', KEYS[1], entry[1])
  end
end
redis.call('SREM', KEYS[2], ARGV[1])
if last and ARGV[2] == 'retry' then
  local id = redis.call('XADD', KEYS[3], '*', 'k', ARGV[1], 'v', last)
  redis.call('SET', KEYS[4], id .. '\n' .. last)
elseif last then
  redis.call('UNLINK', KEYS[4])
end
return count
