-- Fragment: puts back reservations whose lease has ended. The script's own purpose, KEYS, ARGV and reply follow it.
local function put_back(queue, reserved, now)
  local ended = redis.call('ZRANGE', reserved, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 500)
  for _, record in ipairs(ended) do
    redis.call('ZADD', queue, tonumber(string.sub(record, 33, 43)) or 0, record)
    redis.call('ZREM', reserved, record)
  end
end

-- How many microseconds until a reservation ends; -1 if there is none.
local function until_ended(reserved, now)
  local first = redis.call('ZRANGE', reserved, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, tonumber(first) - now) or -1
end

