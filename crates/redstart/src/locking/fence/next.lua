-- Fragment: issues fence tokens.
--
-- Defines  next_fence(key) -> the next token of the counter at `key`, as text: the larger of the previous token + 1
--          and the server's time in microseconds. The time keeps tokens rising when a failover loses the counter. The
--          counter has no TTL, because a token must never be issued twice.
local function next_fence(key)
  -- Joined and compared as text, which costs a fraction of numbers: both have the same number of digits.
  local time = redis.call('TIME')
  local fence = time[1] .. string.sub('00000' .. time[2], -6)
  local last = redis.call('SET', key, fence, 'GET')
  if last and (#last ~= #fence or last >= fence) then
    if string.find(last, '^[1-9]%d*$') and (#last > #fence or #last == #fence and last >= fence) then
      -- The server counts beyond 2^53, where a number of Lua would stay the same.
      redis.call('SET', key, last)
      redis.call('INCR', key)
      fence = redis.call('GET', key)
    end
  end
  return fence
end
