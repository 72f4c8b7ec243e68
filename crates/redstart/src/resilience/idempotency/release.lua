-- Frees a request that was not carried out. After now.lua.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  ms for which a claim of this run that arrives late is refused
-- Returns  1 if the run had the request
local found = redis.call('HMGET', KEYS[1], 't', 'r', 'l')
if found[2] then return 0 end
local held = found[1] == ARGV[1]
-- Marks of other runs stay: their claims may still be on their way.
if held then redis.call('HDEL', KEYS[1], 'f', 't', 'e', 'u') end
local at = math.floor(now() / 1000)
local ends = at + ARGV[2]
if redis.call('HLEN', KEYS[1]) >= 1000 then
  -- Marks whose time is over make room.
  local marks, over = redis.call('HGETALL', KEYS[1]), {}
  for i = 1, #marks, 2 do
    if string.sub(marks[i], 1, 1) == 'v' and tonumber(marks[i + 1]) <= at then over[#over + 1] = marks[i] end
  end
  if #over > 0 then redis.call('HDEL', KEYS[1], unpack(over)) end
end
-- A claim of this run may still be on its way, also if an earlier one arrived, and nobody would ever free it.
if redis.call('HLEN', KEYS[1]) < 1000 then
  local last = string.format('%.0f', math.max(ends, tonumber(found[3] or 0)))
  redis.call('HSET', KEYS[1], 'v' .. ARGV[1], string.format('%.0f', ends), 'l', last)
  if held or not found[1] then redis.call('PEXPIREAT', KEYS[1], last) end
end
return held and 1 or 0
