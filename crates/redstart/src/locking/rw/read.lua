-- Admits a reader, unless a writer holds the lock or waits for it.
--
-- KEYS     1  the writer (string: the owner's token)
--          2  the readers (sorted set: token -> end of its lease in us)
--          3  the waiting writers (sorted set: token -> end of its lease in us)
--          4  unused here: the last fence token
-- ARGV     1  the reader's token
--          2  ttl in ms
--          3-5  unused here: whether to queue, the waiter's lease in ms, the channel
-- Returns  {1, 0}, or {0, ms until it is worth asking again}
local at = now()
leases.reap(KEYS[2], at)
if not leases.runs(KEYS[2], ARGV[1], at) then
  local writer = redis.call('PTTL', KEYS[1])
  if writer ~= -2 then
    return {0, writer}
  end
  leases.reap(KEYS[3], at)
  local waits = leases.last(KEYS[3])
  if waits and waits > at then
    return {0, leases.millis(at, waits)}
  end
end
leases.grant(KEYS[2], ARGV[1], at, ARGV[2] * 1000)
return {1, 0}
