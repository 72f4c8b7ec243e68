-- Lets the lease of a member run for at least `ttl` from now, if it has not ended. Never shortens it.
--
-- KEYS     1  the leases (sorted set: owner's token -> end of its lease in us)
-- ARGV     1  the owner's token
--          2  ttl in ms
-- Returns  1 if the lease still ran, else 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends or tonumber(ends) <= now then
  return 0
end
redis.call('ZADD', KEYS[1], 'GT', string.format('%.0f', now + ARGV[2] * 1000), ARGV[1])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(tonumber(last[2]) / 1000)))
return 1
