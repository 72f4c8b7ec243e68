-- Lets a writer in when nobody reads or writes, and issues its fence token; otherwise notes that it waits,
-- so that no new reader comes in before it.
--
-- KEYS     1  the writer (string: the owner's token)
--          2  the readers (sorted set: token -> end of its lease in us)
--          3  the writers that wait (sorted set: token -> end of its lease in us)
--          4  the last fence token issued
-- ARGV     1  the writer's token
--          2  ttl in ms
--          3  1 to wait in line if it cannot come in, 0 not to
--          4  the waiter's lease in ms
-- Returns  {1, fence token}, or {0, ms until it is worth asking again}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local busy
local writer = redis.call('GET', KEYS[1])
if writer == ARGV[1] then
  -- The same request again, because its first answer was lost.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  local fence = redis.call('GET', KEYS[4])
  if fence then
    return {1, fence}
  end
elseif writer then
  busy = redis.call('PTTL', KEYS[1])
else
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  if last[1] then
    busy = math.ceil((tonumber(last[2]) - now) / 1000)
  end
end
if busy then
  if ARGV[3] == '1' then
    redis.call('ZADD', KEYS[3], string.format('%.0f', now + ARGV[4] * 1000), ARGV[1])
    redis.call('PEXPIRE', KEYS[3], ARGV[4])
  end
  return {0, busy}
end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, next_fence(KEYS[4])}
