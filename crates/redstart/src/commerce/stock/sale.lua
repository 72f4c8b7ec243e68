-- Fragment: one shard of a sale: its counts, its requests, its holds, its buyers. After now.lua.
--
-- KEYS     1  sale (hash: free, held, sold, lent (under way to another shard), moves, ends (ms), closed)
--          2  requests (hash: request -> "state qty expires user"; h held, s sold, c cancelled, x expired, r returned)
--          3  holds (sorted set: request by the microsecond at which its hold ends)
--          4  users (hash: user -> units held or bought)
-- Defines  at, the present in us; find(request) -> {state, qty, expires, user} or nil;
--          leave(request, found, state), which moves a request out of `held` or `sold`;
--          reap() -> how many of the holds that are over were ended, at most BATCH
-- Invariant: every unit is counted in exactly one of free, held, sold and lent.
local at = now()
-- Ending one hold takes about 8 us of the server's time.
local BATCH = 64

local function find(request)
  local record = redis.call('HGET', KEYS[2], request)
  if not record then return nil end
  local state, qty, expires, user = string.match(record, '^(%a) (%d+) (%d+) (.*)$')
  return { state = state, qty = tonumber(qty), expires = tonumber(expires), user = user }
end

-- Units that come back also come back to the buyer's allowance.
local function leave(request, found, state)
  if found.state == 'h' then redis.call('ZREM', KEYS[3], request) end
  redis.call('HSET', KEYS[2], request,
    string.format('%s %.0f %.0f %s', state, found.qty, found.expires, found.user))
  redis.call('HINCRBY', KEYS[1], found.state == 'h' and 'held' or 'sold', -found.qty)
  if state == 's' then
    redis.call('HINCRBY', KEYS[1], 'sold', found.qty)
  else
    redis.call('HINCRBY', KEYS[1], 'free', found.qty)
    if redis.call('HINCRBY', KEYS[4], found.user, -found.qty) <= 0 then
      redis.call('HDEL', KEYS[4], found.user)
    end
  end
end

local function reap()
  local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', at), 'LIMIT', 0, BATCH)
  for _, request in ipairs(over) do
    leave(request, find(request), 'x')
  end
  return #over
end
