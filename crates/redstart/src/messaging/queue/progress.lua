-- Records the progress of a delivery while its worker holds it.
--
-- KEYS  1 running of this worker  2 progress
-- ARGV  1 delivery  2 job id  3 progress
-- Returns  1 recorded, 0 the delivery is no longer held
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
