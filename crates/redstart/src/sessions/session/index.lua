-- Fragment: the index of an account, a sorted set of session ids by the end of their sessions.
--
-- KEYS     none of its own
-- Defines  enlist(index, id, ends, last, time), all times in microseconds. The index outlives `last`, the latest
--          end that the session can have, also if another session of the account has a shorter one.
--          unlist_ended(index, time) removes sessions that have ended, up to 100 of them.
local function unlist_ended(index, time)
    local ended = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%.0f', time), 'LIMIT', 0, 100)
    if #ended > 0 then redis.call('ZREM', index, unpack(ended)) end
end

local function enlist(index, id, ends, last, time)
    unlist_ended(index, time)
    redis.call('ZADD', index, string.format('%.0f', ends), id)
    local wanted = math.ceil((last - time) / 1000) + 1000
    if redis.call('PTTL', index) < wanted then redis.call('PEXPIRE', index, string.format('%.0f', wanted)) end
end
