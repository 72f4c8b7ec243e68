-- Gives the place of a reader to a new owner, once. Its lease runs for at least `ttl` from now.
--
-- KEYS     1  unused here: the writer
--          2  the readers (sorted set: token -> end of its lease in us)
--          3-4  unused here: the waiting writers, the last fence token
-- ARGV     1  the token of the reader that handed it over
--          2  the new reader's token
--          3  ttl in ms
--          4  unused here: the channel
-- Returns  '0', or nil if the place is not to be had
local at = now()
if leases.runs(KEYS[2], ARGV[1], at) then
  redis.call('ZADD', KEYS[2], redis.call('ZSCORE', KEYS[2], ARGV[1]), ARGV[2])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return leases.extend(KEYS[2], ARGV[2], at, ARGV[3] * 1000) and '0' or false
