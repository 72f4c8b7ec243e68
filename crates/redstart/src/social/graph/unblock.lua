-- Lifts a block, which concerns the blocker's side alone. A block that has not reached the other side is completed
-- first.
-- KEYS[1] accounts that a blocks  KEYS[2] intents of the shard
-- ARGV[1] a  ARGV[2] b
-- Returns {done, was blocked} or {pending, operation, number}
local pair = ARGV[1] .. '\0' .. ARGV[2]
local pending = redis.call('HGET', KEYS[2], pair)
if pending then
  local operation, number = string.match(pending, '^(%a+) (%d+)$')
  return {'pending', operation, number}
end
return {'done', '', tostring(redis.call('ZREM', KEYS[1], ARGV[2]))}
