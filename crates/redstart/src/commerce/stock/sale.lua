-- Fragment: one shard of a sale: its counts, its requests, its holds, its buyers. After now.lua.
--
-- KEYS     1  sale (hash: free, held, sold, lent (under way to another shard), moves, ends (ms), closed, id and units of the
--             whole sale, added (units since then), whole (all shards had the sale), remade (units that were here were lost))
--          2  requests (hash: request -> "state qty expires user"; h held, s sold, c cancelled, x expired, r returned;
--             a request that was cancelled before it arrived has no units and no user)
--          3  holds (sorted set: request by the microsecond at which its hold ends)
--          4  users (hash: user -> units held or bought)
--          5  expired (stream: a hold that ended: user, request, qty, ended in us)
-- Defines  at, the present in us; find(request) -> {state, qty, expires, user} or nil; record(...), which find reads;
--          leave(request, found, state), which moves a request out of `held` or `sold`;
--          expire(request, found), which ends a hold that is over;
--          reap() -> how many of the holds that are over were ended, at most BATCH
-- Invariant: every unit is counted in exactly one of free, held, sold and lent.
local at = now()
-- Ending one hold takes a dozen commands.
local BATCH = 64

local function find(request)
  local text = redis.call('HGET', KEYS[2], request)
  if not text then return nil end
  local state, qty, expires, user = string.match(text, '^(%a) (%d+) (%d+) (.*)$')
  return { state = state, qty = tonumber(qty), expires = tonumber(expires), user = user }
end

-- Joined, not formatted: in Lua 5.1 a `%s` ends at a NUL byte.
local function record(state, qty, expires, user)
  return state .. string.format(' %.0f %.0f ', qty, expires) .. user
end

-- Units that come back also come back to the buyer's allowance.
local function leave(request, found, state)
  if found.state == 'h' then redis.call('ZREM', KEYS[3], request) end
  redis.call('HSET', KEYS[2], request, record(state, found.qty, found.expires, found.user))
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

local kept = false

-- Ends a hold that is over, and says so in the stream, which outlives the sale by a day.
local function expire(request, found)
  leave(request, found, 'x')
  found.state = 'x'
  -- A request's name is "length of the user:user id".
  local id = string.sub(request, (string.find(request, ':', 1, true) or 0) + #found.user + 1)
  redis.call('XADD', KEYS[5], '*', 'user', found.user, 'request', id, 'qty', string.format('%.0f', found.qty),
    'ended', string.format('%.0f', found.expires))
  if not kept then
    redis.call('PEXPIREAT', KEYS[5], string.format('%.0f', redis.call('HGET', KEYS[1], 'ends') + 86400000))
    kept = true
  end
end

local function reap()
  local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', at), 'LIMIT', 0, BATCH)
  for _, request in ipairs(over) do
    expire(request, find(request))
  end
  return #over
end
