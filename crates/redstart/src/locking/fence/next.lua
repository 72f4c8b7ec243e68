-- Fragment: issues fence tokens. After now.lua.
--
-- Defines  next_fence(key) -> the next token of the counter at `key`, as text: the larger of the previous token + 1
--          and the server's time in microseconds. The time keeps tokens rising when a failover loses the counter. The
--          counter has no TTL, because a token must never be issued twice.
local function next_fence(key)
  local time = now()
  local fence = string.format('%.0f', time)
  local last = tonumber(redis.call('SET', key, fence, 'GET') or nil)
  if last and last >= time then
    fence = string.format('%.0f', last + 1)
    redis.call('SET', key, fence)
  end
  return fence
end
