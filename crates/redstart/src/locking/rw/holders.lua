-- Reads who holds the lock. Changes nothing.
--
-- KEYS     1  the writer (string: the owner's token)
--          2  the readers (sorted set: token -> end of its lease in us)
--          3  the waiting writers (sorted set: token -> end of its lease in us)
--          4  unused here: the last fence token
-- ARGV     none
-- Returns  {the writer's token or nil; ms until its lease ends; up to 100 readers whose leases end first, each as token and
--          ms until that end; how many readers there are; how many writers wait}
local at = now()
local first = redis.call('ZRANGEBYSCORE', KEYS[2], string.format('(%.0f', at), '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
for i = 2, #first, 2 do
  first[i] = leases.millis(at, tonumber(first[i]))
end
return {
  redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), first, leases.count(KEYS[2], at), leases.count(KEYS[3], at),
}
