-- Fragment: puts back reservations whose lease has ended, up to 200 of them. The script's own purpose, KEYS, ARGV and reply follow it.
local function put_back(queue, reserved, now)
  local ended = redis.call('ZRANGE', reserved, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 200)
  if #ended == 0 then return end
  local scored = {}
  for i, record in ipairs(ended) do
    scored[2 * i - 1], scored[2 * i] = tonumber(string.sub(record, 33, 43)) or 0, record
  end
  redis.call('ZADD', queue, unpack(scored))
  redis.call('ZREM', reserved, unpack(ended))
end

-- How many microseconds until a reservation ends; -1 if there is none.
local function until_ended(reserved, now)
  local first = redis.call('ZRANGE', reserved, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, tonumber(first) - now) or -1
end

