-- Sends free units to another shard. Until that is settled they are counted here, as lent.
-- After now.lua and sale.lua, which states KEYS[1-5].
--
-- KEYS     6  loans (hash: token -> "qty to since ends id", the end in ms and the id of the sale)
--          7  ended loans (hash: token -> 1)
-- ARGV     1  token
--          2  units wanted
--          3  number of the shard that gets them
--          4  id of the sale that they are wanted for
-- Returns  {units, id of the sale, its end in ms}, no units if there are none
local loan = redis.call('HGET', KEYS[6], ARGV[1])
-- The same loan again: its reply was lost.
if loan then
  local qty, ends, id = string.match(loan, '^(%d+) %d+ %d+ (%d+) (.*)$')
  return { tonumber(qty), id, tonumber(ends) }
end
-- A copy of the request that arrives after the loan has ended.
if redis.call('HEXISTS', KEYS[7], ARGV[1]) == 1 then return { 0, '', 0 } end
local sale = redis.call('HMGET', KEYS[1], 'free', 'ends', 'id')
-- No sale, or a copy of a request of an earlier one.
if not sale[1] or (sale[3] or '') ~= ARGV[4] then return { 0, '', 0 } end
local free, wanted = tonumber(sale[1]), tonumber(ARGV[2])
if free < wanted and reap() > 0 then free = tonumber(redis.call('HGET', KEYS[1], 'free')) end
-- Half of what is here, so that the next buyers there need not ask again; at least what is wanted.
local qty = math.min(free, math.max(wanted, math.floor(free / 2)))
if qty <= 0 then return { 0, '', 0 } end
redis.call('HINCRBY', KEYS[1], 'free', -qty)
redis.call('HINCRBY', KEYS[1], 'lent', qty)
redis.call('HINCRBY', KEYS[1], 'moves', 1)
redis.call('HSET', KEYS[6], ARGV[1], string.format('%.0f %s %.0f %s ', qty, ARGV[3], at, sale[2]) .. (sale[3] or ''))
redis.call('PEXPIREAT', KEYS[6], sale[2])
return { qty, sale[3] or '', tonumber(sale[2]) }
