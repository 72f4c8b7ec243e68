-- Frees a request that was not carried out. After now.lua.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  ms for which a claim of this run that arrives late is refused
-- Returns  1 if the run had the request
local found = redis.call('HMGET', KEYS[1], 't', 'r', 'l', 'x')
local token, result, last_mark, over = unpack(found, 1, 4)
local at = math.floor(now() / 1000)
local ends = at + ARGV[2]
-- Until when the key tells what became of the request: without an end if somebody took its TTL away.
local known_until = token and tonumber(over or redis.call('PEXPIRETIME', KEYS[1])) or 0
if known_until < 0 then known_until = math.huge end
-- A claim that arrives late gets the result.
if result and known_until >= ends then return 0 end
local held = token == ARGV[1] and not result
-- Marks of other runs stay: their claims may still be on their way.
if held or known_until <= at then
  redis.call('HDEL', KEYS[1], 'f', 't', 'e', 'r', 'u', 'x')
  known_until = 0
end
if redis.call('HLEN', KEYS[1]) >= 1000 then
  -- Marks whose time is over make room.
  local marks, gone = redis.call('HGETALL', KEYS[1]), {}
  for i = 1, #marks, 2 do
    if string.sub(marks[i], 1, 1) == 'v' and tonumber(marks[i + 1]) <= at then gone[#gone + 1] = marks[i] end
  end
  if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
end
-- A claim of this run may still be on its way, also if an earlier one arrived, and nobody would ever free it.
if redis.call('HLEN', KEYS[1]) < 1000 then
  local last = math.max(ends, tonumber(last_mark or 0))
  redis.call('HSET', KEYS[1], 'v' .. ARGV[1], string.format('%.0f', ends), 'l', string.format('%.0f', last))
  -- The mark lasts longer than what it is beside.
  if known_until > 0 and known_until < last then redis.call('HSET', KEYS[1], 'x', string.format('%.0f', known_until)) end
  if known_until < math.huge then
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.max(last, known_until)))
  end
end
return held and 1 or 0
