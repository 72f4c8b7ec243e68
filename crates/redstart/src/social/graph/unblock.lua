-- Lifts a block. It is a matter of the blocker's side alone; a block that has not arrived at the other side goes first.
-- KEYS[1] whom a blocks  KEYS[2] intents of the bucket
-- ARGV[1] a  ARGV[2] b
-- Returns {done, was blocked} or {pending, operation, number}
local pair = ARGV[1] .. '\0' .. ARGV[2]
local pending = redis.call('HGET', KEYS[2], pair)
if pending then
  local operation, number = string.match(pending, '^(%a+) (%d+)$')
  return {'pending', operation, number}
end
return {'done', '', tostring(redis.call('ZREM', KEYS[1], ARGV[2]))}
