-- Gives back what a grant took, in the window in which it was counted, while that is still in view. After now.lua.
--
-- KEYS     1  the counters
-- ARGV     1  cost
--          2  window in ms
--          3  number of the grant's window
-- Returns  the credited units
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local index = math.floor(math.floor(now() / 1000) / ARGV[2])
local at, current, previous = string.match(value, '^(%d+) (%d+) (%d+)$')
local age = at - ARGV[3]
local credit = 0
if age == 0 and index - at <= 1 then
  credit = math.min(tonumber(ARGV[1]), tonumber(current))
  current = current - credit
elseif age == 1 and index - at == 0 then
  credit = math.min(tonumber(ARGV[1]), tonumber(previous))
  previous = previous - credit
end
if credit > 0 then
  redis.call('SET', KEYS[1], string.format('%s %.0f %.0f', at, current, previous), 'KEEPTTL')
end
return credit
