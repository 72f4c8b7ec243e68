-- Gives a permit to a new owner, once. Its lease runs for at least `ttl` from now.
--
-- KEYS     1  the permits (sorted set: owner's token -> end of its lease in us)
-- ARGV     1  the token of the owner that handed it over
--          2  the new owner's token
--          3  ttl in ms
--          4-  unused here: the channel, the number of permits
-- Returns  '0', or nil if the permit is not to be had
local at = now()
if leases.runs(KEYS[1], ARGV[1], at) then
  redis.call('ZADD', KEYS[1], redis.call('ZSCORE', KEYS[1], ARGV[1]), ARGV[2])
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return leases.extend(KEYS[1], ARGV[2], at, ARGV[3] * 1000) and '0' or false
