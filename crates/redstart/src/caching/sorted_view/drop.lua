-- Drops a view, and the right to keep one that was sorted before now.
--
-- KEYS[1] the view
-- KEYS[2] the mark of a built view
-- KEYS[3] the lease
-- ARGV[1] the channel that wakes waiting clients
--
-- Returns 'OK'
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
redis.call('SPUBLISH', ARGV[1], 'dropped')
return redis.status_reply('OK')
