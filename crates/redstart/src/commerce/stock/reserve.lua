-- Holds units for a buyer and hands the order to the stream, or changes nothing but holds that are over.
-- KEYS    sale, requests, holds, users, orders
-- ARGV    request, user, qty, hold in us, units a user may have (0: any), sku, id of the request
-- Returns {'held', us left} | {'replayed', state, us left} | {'soldout', free} | {'cap', units left to the user}
--         | {'conflict'} | {'cold'}
local sale = redis.call('HMGET', KEYS[1], 'free', 'ends')
if not sale[1] then return { 'cold' } end
local now = clock()
local qty = tonumber(ARGV[3])
local found = find(ARGV[1])
if found and found.state == 'h' and found.expires <= now then
  leave_hold(ARGV[1], found, 'x')
  found.state = 'x'
end
if found then
  if found.qty ~= qty then return { 'conflict' } end
  return { 'replayed', found.state, math.max(0, found.expires - now) }
end
local free = tonumber(sale[1])
if free < qty and reap(now) > 0 then
  free = tonumber(redis.call('HGET', KEYS[1], 'free'))
end
local cap = tonumber(ARGV[5])
if cap > 0 then
  local has = tonumber(redis.call('HGET', KEYS[4], ARGV[2]) or 0)
  if has + qty > cap and reap(now) > 0 then
    has = tonumber(redis.call('HGET', KEYS[4], ARGV[2]) or 0)
    free = tonumber(redis.call('HGET', KEYS[1], 'free'))
  end
  if has + qty > cap then return { 'cap', cap - has } end
end
if free < qty then return { 'soldout', free } end
local expires = now + ARGV[4]
redis.call('HINCRBY', KEYS[1], 'free', -qty)
redis.call('HINCRBY', KEYS[1], 'held', qty)
redis.call('HSET', KEYS[2], ARGV[1], string.format('h %.0f %.0f %s', qty, expires, ARGV[2]))
redis.call('ZADD', KEYS[3], string.format('%.0f', expires), ARGV[1])
redis.call('HINCRBY', KEYS[4], ARGV[2], qty)
for i = 2, 4 do redis.call('PEXPIREAT', KEYS[i], sale[2]) end
redis.call('XADD', KEYS[5], '*', 'sku', ARGV[6], 'user', ARGV[2], 'request', ARGV[7], 'qty', ARGV[3])
return { 'held', tonumber(ARGV[4]) }
