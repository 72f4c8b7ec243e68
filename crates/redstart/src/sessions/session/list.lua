-- Lists the live sessions of an account, a page at a time, in the order of their ends. A session that is renewed
-- meanwhile moves on, so that it is in a later page at the latest.
--
-- KEYS  1 the index of the account, a sorted set
-- ARGV  1 how many at most  2 the end of the last session of the page before, '' for the first page  3 how many sessions with
--       exactly that end to skip
-- Returns  their ids, each followed by its end
local time = now()
unlist_ended(KEYS[1], time)
local from = tonumber(ARGV[2])
from = from and from > time and ARGV[2] or string.format('(%.0f', time)
return redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', ARGV[3], ARGV[1])
