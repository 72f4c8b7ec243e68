-- One bucket of a sale: its counts, its requests, its holds, its buyers.
-- KEYS[1] sale     hash: free, held, sold, lent (on the way to another bucket), moves, ends (ms)
-- KEYS[2] requests hash: request -> "state qty expires user"; h held, s sold, c cancelled, x expired
-- KEYS[3] holds    sorted set: request by the microsecond at which its hold ends
-- KEYS[4] users    hash: user -> units held or bought
-- Invariant: every unit is counted in exactly one of free, held, sold and lent.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function find(request)
  local record = redis.call('HGET', KEYS[2], request)
  if not record then return nil end
  local state, qty, expires, user = string.match(record, '^(%a) (%d+) (%d+) (.*)$')
  return { state = state, qty = tonumber(qty), expires = tonumber(expires), user = user }
end

-- Moves a request out of `held`. Units that come back also come back to the buyer's allowance.
local function leave_hold(request, found, state)
  redis.call('ZREM', KEYS[3], request)
  redis.call('HSET', KEYS[2], request,
    string.format('%s %.0f %.0f %s', state, found.qty, found.expires, found.user))
  redis.call('HINCRBY', KEYS[1], 'held', -found.qty)
  if state == 's' then
    redis.call('HINCRBY', KEYS[1], 'sold', found.qty)
  else
    redis.call('HINCRBY', KEYS[1], 'free', found.qty)
    if redis.call('HINCRBY', KEYS[4], found.user, -found.qty) <= 0 then
      redis.call('HDEL', KEYS[4], found.user)
    end
  end
end

-- Ends holds whose time is over, a bounded number at a time.
local function reap(now)
  local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now), 'LIMIT', 0, 200)
  for _, request in ipairs(over) do
    leave_hold(request, find(request), 'x')
  end
  return #over
end
