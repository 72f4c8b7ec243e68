-- Lets a hold last for a time from now, if it is not over. After now.lua and sale.lua, which states KEYS[1-4].
--
-- ARGV     1  request
--          2  hold in us
-- Returns  {'held', us left} | {'refused', state} | {'unknown'}
local found = find(ARGV[1])
if not found then return { 'unknown' } end
if found.state == 'h' and found.expires <= at then
  leave(ARGV[1], found, 'x')
  found.state = 'x'
end
if found.state ~= 'h' then return { 'refused', found.state } end
-- Never shorter than it is, and never beyond the sale.
local expires = math.max(found.expires, math.min(at + ARGV[2], redis.call('HGET', KEYS[1], 'ends') * 1000))
redis.call('HSET', KEYS[2], ARGV[1], string.format('h %.0f %.0f %s', found.qty, expires, found.user))
redis.call('ZADD', KEYS[3], string.format('%.0f', expires), ARGV[1])
return { 'held', expires - at }
