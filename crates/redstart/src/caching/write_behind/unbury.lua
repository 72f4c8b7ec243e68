-- Removes the dead letters of a key, oldest first, and then unblocks it. The newest letter may go back to the log.
--
-- A write that is newer than all letters wins: it waits in the log and is applied once the key is unblocked, so the
-- newest letter must not be written after it.
--
-- KEYS[1] names of all dead letters
-- KEYS[2] contents of the letters
-- KEYS[3] blocked keys
-- KEYS[4] the log
-- KEYS[5] the cached value
-- ARGV[1] the key
-- ARGV[2] what the names of its letters begin with
-- ARGV[3] 'retry' or 'discard'
-- ARGV[4] how many letters to remove in this call
-- ARGV[5] up to which entry the log was searched by earlier calls, '' if none
--
-- Returns {letters removed, 1 if there is more to do, up to which entry the log was searched or ''}
local low, high = '[' .. ARGV[2], '[' .. ARGV[2] .. ':'
local chunk = tonumber(ARGV[4])
local names = redis.call('ZRANGEBYLEX', KEYS[1], low, high, 'LIMIT', 0, chunk + 1)
local more = #names > chunk
if more then
  table.remove(names)
end
if #names == 0 then
  redis.call('HDEL', KEYS[3], ARGV[1])
  return {0, 0, ''}
end
local newest = names[#names]
local function remove()
  redis.call('ZREM', KEYS[1], unpack(names))
  redis.call('HDEL', KEYS[2], unpack(names))
end
if more then
  remove()
  return {#names, 1, ''}
end

-- The id of the newest letter, without the padding.
local padded = string.sub(newest, #ARGV[2] + 1)
local ms, n = string.match(padded, '^0*(%d+)%-0*(%d+)$')
local id = ms .. '-' .. n
local cached = redis.call('GETRANGE', KEYS[5], 0, 41)
local current = string.match(cached, '^(%d+%-%d+)\n')
local superseded = current and current ~= id
if not current then
  -- The cached value was evicted: only the log knows whether there is a newer write. It is searched in pieces. A write
  -- that comes behind the last piece is found by the call that reads it, which also acts on it.
  local from = ARGV[5] ~= '' and ARGV[5] or id
  local piece = redis.call('XRANGE', KEYS[4], '(' .. from, '+', 'COUNT', 200)
  for _, entry in ipairs(piece) do
    if entry[2][2] == ARGV[1] then
      superseded = true
    end
  end
  if not superseded and #piece == 200 then
    return {0, 1, piece[200][1]}
  end
end
local content = redis.call('HGET', KEYS[2], newest)
remove()
redis.call('HDEL', KEYS[3], ARGV[1])
if superseded then
  return {#names, 0, ''}
end
if ARGV[3] == 'retry' and content then
  local bytes = string.sub(content, string.find(content, '\n', 1, true) + 1)
  local new = redis.call('XADD', KEYS[4], '*', 'k', ARGV[1], 'v', bytes)
  redis.call('SET', KEYS[5], new .. '\n' .. bytes)
elseif current then
  redis.call('UNLINK', KEYS[5])
end
return {#names, 0, ''}
