-- Reads all windows and the server's time at one moment.
-- KEYS[1] hash of window start (seconds) -> count
-- ARGV    none
-- Returns {now in seconds, {start, count, ...}}
return {tonumber(redis.call('TIME')[1]), redis.call('HGETALL', KEYS[1])}
