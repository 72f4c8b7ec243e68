-- Writes a value unless a higher fence token was seen before.
--
-- KEYS     1  the value (hash: fence, value)
-- ARGV     1  the writer's fence token
--          2  'set', 'delete' or 'admit'
--          3  the value, for 'set'
-- Returns  {1, token} if it was written, {0, the highest token seen} if it was refused
--
-- The highest token stays when the value is deleted and has no TTL: without it an old token would be accepted again.
local fence = tonumber(ARGV[1])
local highest = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if fence < highest then
  return {0, string.format('%.0f', highest)}
end
if ARGV[2] == 'set' then
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[3])
else
  redis.call('HSET', KEYS[1], 'fence', ARGV[1])
  if ARGV[2] == 'delete' then
    redis.call('HDEL', KEYS[1], 'value')
  end
end
return {1, ARGV[1]}
