-- Fragment: the waiters of a fair lock, in the order of their numbers. After now.lua and leased_set.lua.
--
-- Defines  line.reap(queue, places, at)   removes waiters whose place expired (up to 100); -> how many
--          line.leave(queue, places, token)
--          line.head(queue, places)       -> the token of the first waiter, or nil
local line = {}

function line.leave(queue, places, token)
  redis.call('ZREM', queue, token)
  redis.call('ZREM', places, token)
end

function line.reap(queue, places, at)
  local expired = leases.reap(places, at)
  if #expired > 0 then
    redis.call('ZREM', queue, unpack(expired))
  end
  return #expired
end

function line.head(queue, places)
  -- A server that evicts may drop the leases alone: a place without one would never end.
  for _ = 1, 100 do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head or redis.call('ZSCORE', places, head) then
      return head
    end
    redis.call('ZREM', queue, head)
  end
  return redis.call('ZRANGE', queue, 0, 0)[1]
end
