-- Gives up a lease without a value, because the load failed or its value is not stored.
--
-- KEYS[1] the lease
-- ARGV[1] the token
-- ARGV[2] for how long nobody tries again, ms; 0 lets the next one try at once
-- ARGV[3] the channel that wakes waiting processes
--
-- Returns 1 given up, 0 it was no longer held
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if tonumber(ARGV[2]) > 0 then
  redis.call('SET', KEYS[1], 'rest', 'PX', ARGV[2])
else
  redis.call('UNLINK', KEYS[1])
end
redis.call('SPUBLISH', ARGV[3], 'released')
return 1
