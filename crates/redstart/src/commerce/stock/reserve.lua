-- Holds units for a buyer and adds the order to the stream, or changes nothing but holds that are over.
-- After now.lua and sale.lua, which states KEYS[1-5].
--
-- KEYS     6  orders (stream)
-- ARGV     1  request
--          2  user
--          3  quantity
--          4  hold in us
--          5  units that a user may have, 0: any number
--          6  sku
--          7  id of the request
--          8  id of the sale, '' if the caller does not know it yet
-- Returns  {'other', id of the sale} if it is not the caller's: nothing was changed; else
--          {'held', us left} | {'replayed', state, us left} | {'soldout', free} | {'cap', units left to the user}
--          | {'conflict'} | {'closed'} | {'cold'} | {'again'} if more holds that are over must be ended to decide;
--          if the caller does not know the sale, followed by its id ('' if there is none)
local sale = redis.call('HMGET', KEYS[1], 'free', 'ends', 'closed', 'id')
local id = sale[4] or ''

local function reserve()
  if not sale[1] then return { 'cold' } end
  -- A copy of a request of an earlier sale, or a caller that does not know of this one and asks again.
  if ARGV[8] ~= '' and ARGV[8] ~= id then return { 'other', id } end
  local qty = tonumber(ARGV[3])
  local found = find(ARGV[1])
  if found and found.state == 'h' and found.expires <= at then
    expire(ARGV[1], found)
  end
  if found then
    -- One that was cancelled before it arrived has no quantity.
    if found.qty ~= qty and found.qty ~= 0 then return { 'conflict' } end
    return { 'replayed', found.state, math.max(0, found.expires - at) }
  end
  if sale[3] then return { 'closed' } end
  local cap = tonumber(ARGV[5])
  local function look()
    local free = tonumber(redis.call('HGET', KEYS[1], 'free'))
    local has = cap > 0 and tonumber(redis.call('HGET', KEYS[4], ARGV[2]) or 0) or 0
    return free, has, cap > 0 and has + qty > cap
  end
  local free, has, capped = look()
  if free < qty or capped then
    local reaped = reap()
    free, has, capped = look()
    if (free < qty or capped) and reaped == BATCH then return { 'again' } end
  end
  if capped then return { 'cap', math.max(0, cap - has) } end
  if free < qty then return { 'soldout', free } end
  -- A hold does not outlive its sale: everything about it is forgotten then.
  local expires = math.min(at + ARGV[4], sale[2] * 1000)
  redis.call('HINCRBY', KEYS[1], 'free', -qty)
  redis.call('HINCRBY', KEYS[1], 'held', qty)
  redis.call('HSET', KEYS[2], ARGV[1], record('h', qty, expires, ARGV[2]))
  redis.call('ZADD', KEYS[3], string.format('%.0f', expires), ARGV[1])
  redis.call('HINCRBY', KEYS[4], ARGV[2], qty)
  for i = 2, 4 do redis.call('PEXPIREAT', KEYS[i], sale[2]) end
  redis.call('XADD', KEYS[6], '*', 'sku', ARGV[6], 'user', ARGV[2], 'request', ARGV[7], 'qty', ARGV[3])
  return { 'held', expires - at }
end

local answer = reserve()
if ARGV[8] == '' then answer[#answer + 1] = id end
return answer
