-- Reads intents that should have been completed by now.
-- KEYS[1] intents of the bucket: pair -> what  KEYS[2] intents by time
-- ARGV[1] how old they are at least, in microseconds  ARGV[2] how many at most
-- Returns {a, b, operation, number} of each, the oldest first
local time = redis.call('TIME')
local before = tonumber(time[1]) * 1000000 + tonumber(time[2]) - tonumber(ARGV[1])
local reply = {}
for _, pair in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', before), 'LIMIT', 0, ARGV[2])) do
  local what = redis.call('HGET', KEYS[1], pair)
  if what then
    local a, b = string.match(pair, '^(%Z+)%z(%Z+)$')
    local operation, number = string.match(what, '^(%a+) (%d+)$')
    reply[#reply + 1] = {a, b, operation, number}
  end
end
return reply
