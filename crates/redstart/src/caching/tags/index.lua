-- Adds an entry to the set of a tag, which must outlive it.
--
-- KEYS[1] the set
-- ARGV[1] the entry's name
-- ARGV[2] how long the set must live from now, ms
--
-- Returns 'OK'
redis.call('SADD', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return redis.status_reply('OK')
