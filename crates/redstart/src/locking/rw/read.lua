-- Lets a reader in, unless a writer writes or waits.
--
-- KEYS     1  the writer (string: the owner's token)
--          2  the readers (sorted set: token -> end of its lease in us)
--          3  the writers that wait (sorted set: token -> end of its lease in us)
-- ARGV     1  the reader's token
--          2  ttl in ms
-- Returns  {1, 0}, or {0, ms until it is worth asking again}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local dead = string.format('%.0f', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', dead)
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  local writer = redis.call('PTTL', KEYS[1])
  if writer ~= -2 then
    return {0, writer}
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', dead)
  local waits = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')
  if waits[1] then
    return {0, math.ceil((tonumber(waits[2]) - now) / 1000)}
  end
end
redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[2] * 1000), ARGV[1])
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', math.ceil(tonumber(last[2]) / 1000)))
return {1, 0}
