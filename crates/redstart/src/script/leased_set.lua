-- Fragment: a sorted set of leases, member -> end of its lease in microseconds by the server's clock. After now.lua.
--
-- The key expires with its last lease. No function visits more than 100 members.
--
-- Defines  leases.reap(key, at)                    removes up to 100 leases that ended by `at`
--          leases.count(key, at)                   -> how many leases run at `at`
--          leases.runs(key, member, at)            -> whether the member's lease runs at `at`
--          leases.first(key, at)                   -> the member whose lease ends first and that end, or nil
--          leases.last(key)                        -> the end of the last lease, or nil
--          leases.grant(key, member, at, us)       gives the member a lease of `us` microseconds from `at`
--          leases.extend(key, member, at, us)      -> true if the lease still ran; never shortens it
--          leases.drop(key, member, at)            -> true if the lease still ran, false if it had ended, nil if unknown
--          leases.millis(at, ends)                 -> whole ms from `at` until `ends`, rounded up
local leases = {}

function leases.reap(key, at)
  local ended = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', at), 'LIMIT', 0, 100)
  if #ended > 0 then
    redis.call('ZREM', key, unpack(ended))
  end
  return ended
end

function leases.count(key, at)
  return redis.call('ZCOUNT', key, string.format('(%.0f', at), '+inf')
end

function leases.runs(key, member, at)
  local ends = redis.call('ZSCORE', key, member)
  return ends and tonumber(ends) > at
end

function leases.first(key, at)
  local first = redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', at), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1], tonumber(first[2])
end

function leases.last(key)
  return tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
end

function leases.expire(key)
  redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(leases.last(key) / 1000)))
end

function leases.grant(key, member, at, us)
  redis.call('ZADD', key, string.format('%.0f', at + us), member)
  leases.expire(key)
end

function leases.extend(key, member, at, us)
  if not leases.runs(key, member, at) then
    return false
  end
  redis.call('ZADD', key, 'GT', string.format('%.0f', at + us), member)
  leases.expire(key)
  return true
end

function leases.drop(key, member, at)
  local ends = redis.call('ZSCORE', key, member)
  if not ends then
    return nil
  end
  redis.call('ZREM', key, member)
  return tonumber(ends) > at
end

function leases.millis(at, ends)
  return math.ceil((ends - at) / 1000)
end
