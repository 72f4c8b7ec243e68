-- Tells first levels that the whole cache was cleared.
--
-- KEYS[1] a key that is created and removed, for first levels that hear of changed keys
-- ARGV[1] the classic channel that tells the others
-- ARGV[2] the message for it
--
-- Returns 'OK'
redis.call('SET', KEYS[1], '', 'PX', 1000)
redis.call('UNLINK', KEYS[1])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return redis.status_reply('OK')
