-- Sliding window: a log of what was admitted, one member for each unit of cost, scored by microsecond.
-- Old members leave when something is admitted, never when something is refused.
--
-- sliding_window(key, cost, limit, window, id): window in microseconds; id is unique to this request.
-- Returns wait (us, 0 = may take), count, commit() -> count afterwards, reset (us); reset (us).
local function sliding_window(key, cost, limit, window, id)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local oldest = string.format('(%.0f', now - window)
  local used = redis.call('ZCOUNT', key, oldest, '+inf')
  local reset = 0
  if used > 0 then
    reset = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] + window - now
  end
  local over = used + cost - limit
  if over > 0 then
    -- The slot that is needed is freed by the over-th oldest of the live members.
    local frees = redis.call('ZRANGEBYSCORE', key, oldest, '+inf', 'WITHSCORES', 'LIMIT', over - 1, 1)
    return frees[2] + window - now, used, nil, reset
  end
  return 0, used, function()
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now - window))
    local stamp = string.format('%.0f', now)
    local members = {}
    for i = 1, tonumber(cost) do
      members[#members + 1] = stamp
      members[#members + 1] = id .. ':' .. i
      if #members == 2000 then
        redis.call('ZADD', key, unpack(members))
        members = {}
      end
    end
    if #members > 0 then redis.call('ZADD', key, unpack(members)) end
    redis.call('PEXPIRE', key, math.ceil(window / 1000) + 1)
    return used + cost, tonumber(window), id
  end, reset
end
