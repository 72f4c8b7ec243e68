-- Moves an intent that could not be completed to the end of the queue.
-- KEYS[1] intents by time
-- ARGV[1] a  ARGV[2] b
-- Returns 1 if its place changed, else 0
return redis.call('ZADD', KEYS[1], 'XX', 'CH', string.format('%.0f', now()), ARGV[1] .. '\0' .. ARGV[2])
