-- Lists the live sessions of an account.
--
-- KEYS  1 the index of the account, a sorted set
-- ARGV  none
-- Returns  their ids
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now()))
return redis.call('ZRANGE', KEYS[1], 0, -1)
