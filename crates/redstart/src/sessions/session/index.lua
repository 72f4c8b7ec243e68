-- Fragment: the index of an account, a sorted set of session ids by the end of their sessions.
--
-- KEYS     none of its own
-- Defines  enlist(index, id, ends, last, time), all times in microseconds. The index outlives `last`, the latest
--          end that the session can have, also if another session of the account has a shorter one.
local function enlist(index, id, ends, last, time)
    redis.call('ZREMRANGEBYSCORE', index, '-inf', string.format('%.0f', time))
    redis.call('ZADD', index, string.format('%.0f', ends), id)
    local wanted = math.ceil((last - time) / 1000) + 1000
    if redis.call('PTTL', index) < wanted then redis.call('PEXPIRE', index, string.format('%.0f', wanted)) end
end
