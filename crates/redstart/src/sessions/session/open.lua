-- Fragment: opens a session by a token and renews its idle timeout. Needs now() and enlist().
--
-- KEYS     none of its own
-- Defines  open(key, index, id, digest) -> nil if the session is gone or the token is not its own, otherwise a table:
--          time, ends, last (microseconds), current (false for a token that was rotated within its grace)
--          graces(previous, time) -> the digests whose grace is not over, each followed by its end, newest first
--          renew(key, index, id, session, idle, remembered, slack) -> the end of the session, never after `last`
local function graces(previous, time)
    local kept = {}
    for digest, ends in string.gmatch(previous or '', '(%S+) (%d+)') do
        if tonumber(ends) > time and #kept < 16 then
            kept[#kept + 1] = digest
            kept[#kept + 1] = ends
        end
    end
    return kept
end

local function open(key, index, id, digest)
    local found = redis.call('HMGET', key, 'token', 'previous', 'ends', 'until', 'seen', 'user', 'remembered')
    if not found[1] then
        redis.call('ZREM', index, id)
        return nil
    end
    local session = { time = now(), ends = tonumber(found[3]), last = tonumber(found[4]), seen = tonumber(found[5]),
        user = found[6], remembered = found[7], current = found[1] == digest }
    session.previous = graces(found[2], session.time)
    if session.ends <= session.time then
        redis.call('DEL', key)
        redis.call('ZREM', index, id)
        return nil
    end
    if session.current then return session end
    for i = 1, #session.previous, 2 do
        if session.previous[i] == digest then return session end
    end
    return nil
end

local function renew(key, index, id, session, idle, remembered, slack)
    if session.time - session.seen <= tonumber(slack) then return session.ends end
    if session.remembered then idle = remembered end
    local ends = math.min(session.time + idle, session.last)
    local text = string.format('%.0f', ends)
    redis.call('HSET', key, 'ends', text, 'seen', string.format('%.0f', session.time))
    redis.call('PEXPIREAT', key, string.format('%.0f', math.floor(ends / 1000)))
    -- An index that has the session was made to outlive it. One without it was lost, and is made again.
    if session.user ~= '' and redis.call('ZADD', index, text, id) == 1 then
        enlist(index, id, ends, session.last, session.time)
    end
    return ends
end
