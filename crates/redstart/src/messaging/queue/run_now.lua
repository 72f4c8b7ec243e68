-- Makes a delayed job ready now.
--
-- KEYS  1 delayed  2 ready  3 ranked  4 idle
-- ARGV  1 wake channel  2 boost in microseconds  3 the whole record
-- Returns  1 made ready, 0 it is no longer delayed
if redis.call('ZREM', KEYS[1], ARGV[3]) == 0 then return 0 end
make_ready('RPUSH', KEYS[2], KEYS[3], tonumber(ARGV[2]), { ready_at(ARGV[3], now()) })
wake(KEYS[4], ARGV[1], 1)
return 1
