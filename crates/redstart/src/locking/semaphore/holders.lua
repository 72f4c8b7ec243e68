-- Reads who holds permits. Changes nothing.
--
-- KEYS     1  the permits (sorted set: owner's token -> end of its lease in us)
-- ARGV     1  the channel on which waiters listen
-- Returns  {up to 100 holders whose leases end first, each as token and ms until that end; how many leases run; processes
--          that wait}
local at = now()
local first = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', at), '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
for i = 2, #first, 2 do
  first[i] = leases.millis(at, tonumber(first[i]))
end
return {first, leases.count(KEYS[1], at), redis.call('PUBSUB', 'SHARDNUMSUB', ARGV[1])[2]}
