-- Reads all windows and the server's time at one moment.
-- KEYS[1] hash of window start (seconds) -> count, with the settings 'window' and 'retain'
-- ARGV    none
-- Returns {now in seconds, {field, value, ...}}
return {tonumber(redis.call('TIME')[1]), redis.call('HGETALL', KEYS[1])}
