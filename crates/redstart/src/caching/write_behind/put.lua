-- Writes a value and its entry in the log, both or neither.
--
-- The value has no TTL: until its entry is applied it is the only copy that readers have.
--
-- KEYS[1] the shard's log
-- KEYS[2] the value: the entry's id, a line feed, '+' and the bytes, or '-' for one that was deleted; the
--         lease of the loader stands there too, and is gone with this write
-- ARGV[1] the key's name
-- ARGV[2] '+' and the bytes, or '-'
-- ARGV[3] how many entries the log may hold
--
-- Returns the entry's id, or, as a number, the entries in the log
local length = redis.call('XLEN', KEYS[1])
if length >= tonumber(ARGV[3]) then
  return length
end
local id = redis.call('XADD', KEYS[1], '*', 'k', ARGV[1], 'v', ARGV[2])
redis.call('SET', KEYS[2], id .. '\n' .. ARGV[2])
return id
