-- Adds to the window that the server's clock is in. The first count of a window removes those that are
-- past their retention.
-- KEYS[1] hash of window start (seconds) -> count
-- ARGV[1] how many  ARGV[2] length of a window in seconds  ARGV[3] windows to keep
-- Returns the count of the window
local length, retain = tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(redis.call('TIME')[1])
local start = now - now % length
local field = string.format('%.0f', start)
local fresh = redis.call('HEXISTS', KEYS[1], field) == 0
local count = redis.call('HINCRBY', KEYS[1], field, ARGV[1])
if fresh then
  local oldest = start - (retain - 1) * length
  local stale = {}
  for _, known in ipairs(redis.call('HKEYS', KEYS[1])) do
    if tonumber(known) < oldest then
      stale[#stale + 1] = known
    end
  end
  for i = 1, #stale, 1000 do
    redis.call('HDEL', KEYS[1], unpack(stale, i, math.min(i + 999, #stale)))
  end
end
redis.call('EXPIRE', KEYS[1], retain * length)
return count
