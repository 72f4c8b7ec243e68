-- Put in front of the scripts that issue fence tokens.
--
-- next_fence(key) counts up the counter at `key` and returns its new value as text: the larger of the
-- previous value + 1 and the server's time in microseconds. The time keeps tokens rising when a failover
-- loses the counter. The counter has no TTL: a token must never come again.
local function next_fence(key)
  local time = redis.call('TIME')
  local fence = time[1] .. string.sub('00000', #time[2]) .. time[2]
  local last = redis.call('SET', key, fence, 'GET')
  -- Of digits alone and equally long, texts are ordered as their numbers are, in every locale.
  if last and (#last > #fence or (#last == #fence and last >= fence)) then
    fence = string.format('%.0f', last + 1)
    redis.call('SET', key, fence)
  end
  return fence
end

