-- Adds to the window that the server's clock is in. The first count of a window removes those that are no longer
-- kept.
-- KEYS[1] hash of window start (seconds) -> count, with two fields of settings: 'window' (its length in seconds)
--         and 'retain' (windows to keep, the largest number that any caller asked for)
-- ARGV[1] how many  ARGV[2] length of a window in seconds  ARGV[3] windows to keep
-- Returns {count of the window, length of the windows}; if the length is not ARGV[2], nothing was written
local length, retain = tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(redis.call('TIME')[1])
local start = now - now % length
local field = string.format('%.0f', start)
local known = redis.call('HMGET', KEYS[1], field, 'window', 'retain')
if known[2] and known[2] ~= ARGV[2] then
  return {0, tonumber(known[2])}
end
local count = redis.call('HINCRBY', KEYS[1], field, ARGV[1])
if not known[1] then
  if known[3] and tonumber(known[3]) > retain then
    retain = tonumber(known[3])
  end
  redis.call('HSET', KEYS[1], 'window', ARGV[2], 'retain', string.format('%.0f', retain))
  local oldest = start - (retain - 1) * length
  local stale = {}
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    local at = tonumber(name)
    if at and at < oldest then
      stale[#stale + 1] = name
    end
  end
  for i = 1, #stale, 1000 do
    redis.call('HDEL', KEYS[1], unpack(stale, i, math.min(i + 999, #stale)))
  end
  redis.call('EXPIRE', KEYS[1], retain * length)
else
  local largest = math.max(retain, tonumber(known[3] or 0))
  if retain == largest and known[3] ~= ARGV[3] then
    -- The first count of the next window may be by a caller who keeps fewer.
    redis.call('HSET', KEYS[1], 'retain', ARGV[3])
  end
  redis.call('EXPIRE', KEYS[1], largest * length)
end
return {count, length}
