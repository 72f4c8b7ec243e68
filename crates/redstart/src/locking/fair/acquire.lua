-- Takes the lock if it is free and the caller is first in line, and issues the fence token; otherwise puts the caller
-- at the end of the line, or keeps its place there.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  the line (sorted set: token -> its number)
--          3  the leases of the places (sorted set: token -> end of its lease in us)
--          4  the last fence token
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3  1 to wait in line, 0 not to
--          4  the lease of a place in ms
--          5  the channel on which waiters listen
-- Returns  {1, fence token}, or {0, ms until it is worth asking again}
local at = now()
-- A waiter that stopped asking has died or left: its place is free.
local expired = line.reap(KEYS[2], KEYS[3], at)

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  -- The same request again, because its first reply was lost.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  local fence = redis.call('GET', KEYS[4])
  return {1, fence or next_fence(KEYS[4])}
end

local head = line.head(KEYS[2], KEYS[3])
if not holder and (not head or head == ARGV[1]) then
  line.leave(KEYS[2], KEYS[3], ARGV[1])
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, next_fence(KEYS[4])}
end

if ARGV[3] == '1' then
  if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
    local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
    local number = math.max(at, tonumber(last[2] or '0') + 1)
    redis.call('ZADD', KEYS[2], string.format('%.0f', number), ARGV[1])
  end
  leases.grant(KEYS[3], ARGV[1], at, ARGV[4] * 1000)
  redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', math.ceil(leases.last(KEYS[3]) / 1000)))
end
if holder then
  return {0, redis.call('PTTL', KEYS[1])}
end
if expired > 0 then
  -- The waiter that was woken is dead; its successor does not know yet.
  redis.call('SPUBLISH', ARGV[5], head)
end
-- A place that has ended and was not removed yet, because there are many, is worth asking for at once.
return {0, math.max(0, leases.millis(at, tonumber(redis.call('ZSCORE', KEYS[3], head) or at)))}
