-- Fragment: the server's time.
--
-- KEYS     none
-- Defines  now() -> microseconds since 1970, an integer below 2^53
local function now()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end
