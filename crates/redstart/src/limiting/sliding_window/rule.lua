-- Fragment: a log of what was admitted, one member per unit of cost, scored by microsecond. After now.lua.
--
-- Old members are removed when something is admitted, never when something is refused, and a bounded number at a time:
-- those that stay do not count, and the next admissions remove them.
--
-- KEYS     none of its own: the caller gives the key
-- Defines  sliding_window(key, cost, limit, window in us, id) -> us to wait (0: may take), count,
--            commit() -> count afterwards, us until all is free, receipt; us until all is free.
--            `id` is unique to this request.
local function sliding_window(key, cost, limit, window, id)
  local time = now()
  local edge = string.format('%.0f', time - window)
  local used = redis.call('ZCOUNT', key, '(' .. edge, '+inf')
  local reset = 0
  if used > 0 then
    reset = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] + window - time
  end
  local over = used + cost - limit
  if over > 0 then
    -- The slot that is needed is freed by the over-th oldest of the live members. It is found by its rank: an offset among
    -- scores would be counted one by one.
    local rank = redis.call('ZCOUNT', key, '-inf', edge) + over - 1
    local frees = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
    return frees[2] + window - time, used, nil, reset
  end
  return 0, used, function()
    local old = math.min(redis.call('ZCOUNT', key, '-inf', edge), cost + 256)
    if old > 0 then redis.call('ZREMRANGEBYRANK', key, 0, old - 1) end
    local stamp = string.format('%.0f', time)
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
