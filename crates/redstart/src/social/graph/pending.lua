-- Reads intents that should have been completed by now.
-- KEYS[1] intents of the shard: pair -> operation and number  KEYS[2] intents by time
-- ARGV[1] how old they are at least, in microseconds  ARGV[2] how many at most
-- Returns {a, b, operation, number} of each, the oldest first
local before = string.format('%.0f', now() - tonumber(ARGV[1]))
local reply = {}
for _, pair in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', before, 'LIMIT', 0, ARGV[2])) do
  local intent = redis.call('HGET', KEYS[1], pair)
  local a, b = string.match(pair, '^(%Z+)%z(%Z+)$')
  local operation, number = string.match(intent or '', '^(%a+) (%d+)$')
  if a and operation then
    reply[#reply + 1] = {a, b, operation, number}
  else
    -- Completed meanwhile on a server that lost part of its data, or not written by this pattern.
    redis.call('ZREM', KEYS[2], pair)
  end
end
return reply
