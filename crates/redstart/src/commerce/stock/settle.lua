-- Confirms or cancels a held request, or takes a sold one back. After now.lua and sale.lua, which states KEYS[1-5].
--
-- ARGV     1  request
--          2  new state: s sold or c cancelled, both from held; r returned, from sold
-- Returns  {'done'} | {'repeated'} | {'refused', state, us left} | {'unknown'}
local ends = redis.call('HGET', KEYS[1], 'ends')
local found = ends and find(ARGV[1])
if not found then
  -- The request may still be on its way: when it arrives, it is cancelled already.
  if ends and ARGV[2] == 'c' then
    redis.call('HSET', KEYS[2], ARGV[1], record('c', 0, 0, ''))
    redis.call('PEXPIREAT', KEYS[2], ends)
  end
  return { 'unknown' }
end
if found.state == ARGV[2] then return { found.qty == 0 and 'unknown' or 'repeated' } end
if found.state == 'h' and found.expires <= at then
  expire(ARGV[1], found)
end
if found.state ~= (ARGV[2] == 'r' and 's' or 'h') then
  return { 'refused', found.state, math.max(0, found.expires - at) }
end
leave(ARGV[1], found, ARGV[2])
return { 'done' }
