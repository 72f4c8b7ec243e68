-- Forgets what became of a request, unless a run has it, and refuses late claims of the run that had it. After now.lua.
--
-- KEYS     1  the request
-- ARGV     1  ms for which a claim that arrives late is refused
-- Returns  1, or 0 if a run has the request and its lease goes on
local found = redis.call('HMGET', KEYS[1], 't', 'l', 'r', 'u', 'e')
local token, last_mark, result, unknown, lease = unpack(found, 1, 5)
if token and not result and not unknown and tonumber(lease or 0) > now() then return 0 end
local at = math.floor(now() / 1000)
local last = tonumber(last_mark or 0)
redis.call('HDEL', KEYS[1], 'f', 't', 'e', 'r', 'u', 'x')
if token and redis.call('HLEN', KEYS[1]) < 1000 then
  local ends = string.format('%.0f', at + ARGV[1])
  last = math.max(last, tonumber(ends))
  redis.call('HSET', KEYS[1], 'v' .. token, ends, 'l', string.format('%.0f', last))
end
if last > at then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last))
else
  redis.call('DEL', KEYS[1])
end
return 1
