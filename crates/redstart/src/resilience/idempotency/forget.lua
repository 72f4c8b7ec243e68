-- Forgets what became of a request, and refuses late claims of the run that had it. After now.lua.
--
-- KEYS     1  the request
-- ARGV     1  ms for which a claim that arrives late is refused
-- Returns  1 if something was known of it
local found = redis.call('HMGET', KEYS[1], 't', 'l')
local at = math.floor(now() / 1000)
local last = tonumber(found[2] or 0)
redis.call('HDEL', KEYS[1], 'f', 't', 'e', 'r', 'u', 'x')
if found[1] and redis.call('HLEN', KEYS[1]) < 1000 then
  local ends = string.format('%.0f', at + ARGV[1])
  last = math.max(last, tonumber(ends))
  redis.call('HSET', KEYS[1], 'v' .. found[1], ends, 'l', string.format('%.0f', last))
end
if last > at then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last))
else
  redis.call('DEL', KEYS[1])
end
return found[1] and 1 or 0
