-- Fences a key before its row is changed: until the fence is lifted or expires, nothing that was loaded is stored.
--
-- What is cached now may be old in a moment. It is served for no longer than the fence lasts, so that a writer that
-- dies after its commit leaves nothing old behind.
--
-- KEYS[1] the entry
-- KEYS[2] the lease
-- KEYS[3] the fence: a sorted set of 'w:<token>' by the end of that writer's fence in µs, and last 'm:<version>', the
--         newest version that a writer has stored under it
-- ARGV[1] the writer's token
-- ARGV[2] how long its fence lasts, ms
-- ARGV[3] the channel that wakes waiting processes
-- ARGV[4] the classic channel that tells first levels
-- ARGV[5] the message for it
--
-- Returns 'OK'
redis.call('ZADD', KEYS[3], string.format('%.0f', now() + tonumber(ARGV[2]) * 1000), 'w:' .. ARGV[1])
if redis.call('PTTL', KEYS[3]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[3], ARGV[2])
end
redis.call('UNLINK', KEYS[2])
if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('SPUBLISH', ARGV[3], 'fenced')
redis.call('PUBLISH', ARGV[4], ARGV[5])
return redis.status_reply('OK')
