-- Lets a hold last for a time from now, if it is not over. After now.lua and sale.lua, which states KEYS[1-5].
--
-- ARGV     1  request
--          2  hold in us
-- Returns  {'held', us left} | {'refused', state} | {'unknown'}
local found = redis.call('EXISTS', KEYS[1]) == 1 and find(ARGV[1])
if not found then return { 'unknown' } end
if found.state == 'h' and found.expires <= at then
  expire(ARGV[1], found)
end
if found.state ~= 'h' then return { 'refused', found.state } end
-- Never shorter than it is, and never beyond the sale.
local expires = math.max(found.expires, math.min(at + ARGV[2], redis.call('HGET', KEYS[1], 'ends') * 1000))
redis.call('HSET', KEYS[2], ARGV[1], record('h', found.qty, expires, found.user))
redis.call('ZADD', KEYS[3], string.format('%.0f', expires), ARGV[1])
return { 'held', expires - at }
