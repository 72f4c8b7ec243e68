-- Admits a writer when there is neither a reader nor a writer, and issues its fence token; otherwise records that it
-- waits, so that no new reader is admitted before it.
--
-- KEYS     1  the writer (string: the owner's token)
--          2  the readers (sorted set: token -> end of its lease in us)
--          3  the waiting writers (sorted set: token -> end of its lease in us)
--          4  the last fence token
-- ARGV     1  the writer's token
--          2  ttl in ms
--          3  1 to wait if it is not admitted, 0 not to
--          4  the waiter's lease in ms
--          5  unused here: the channel
-- Returns  {1, fence token}, or {0, ms until it is worth asking again}
local at = now()
local busy
local writer = redis.call('GET', KEYS[1])
if writer == ARGV[1] then
  -- The same request again, because its first reply was lost.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  local fence = redis.call('GET', KEYS[4])
  if fence then
    return {1, fence}
  end
elseif writer then
  busy = redis.call('PTTL', KEYS[1])
else
  leases.reap(KEYS[2], at)
  local last = leases.last(KEYS[2])
  if last and last > at then
    busy = leases.millis(at, last)
  end
end
if busy then
  if ARGV[3] == '1' then
    leases.reap(KEYS[3], at)
    leases.grant(KEYS[3], ARGV[1], at, ARGV[4] * 1000)
  end
  return {0, busy}
end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, next_fence(KEYS[4])}
