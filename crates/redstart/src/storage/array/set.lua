-- Writes one record in place.
-- KEYS[1] the array
-- ARGV[1] offset in bytes  ARGV[2] the record  ARGV[3] TTL in ms, 0 for none
-- Returns OK
redis.call('SETRANGE', KEYS[1], ARGV[1], ARGV[2])
if ARGV[3] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return redis.status_reply('OK')
