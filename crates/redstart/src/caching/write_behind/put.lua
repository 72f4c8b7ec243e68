-- Writes a value and its entry in the log, both or neither.
--
-- The value has no TTL: until its entry is applied it is the only copy that readers have.
--
-- KEYS[1] the partition's log
-- KEYS[2] the value: the entry's id, a line feed, '+' and the bytes, or '-' for one that was deleted
-- KEYS[3] the lease of whoever loads the value
-- ARGV[1] the key's name
-- ARGV[2] '+' or '-'
-- ARGV[3] the bytes
-- ARGV[4] how many entries the log may hold
--
-- Returns {1, id} or {0, entries in the log}
local length = redis.call('XLEN', KEYS[1])
if length >= tonumber(ARGV[4]) then
  return {0, tostring(length)}
end
local id = redis.call('XADD', KEYS[1], '*', 'k', ARGV[1], 'v', ARGV[2] .. ARGV[3])
redis.call('SET', KEYS[2], id .. '\n' .. ARGV[2] .. ARGV[3])
redis.call('UNLINK', KEYS[3])
return {1, id}
