-- All jobs of a large flow are there: from now on it is in the queue, and none of it can be missing. Whoever adds it hands
-- them out, or a worker if it is not heard of.
--
-- KEYS  1 the flow's jobs, by number; the field '' is the next to be handed out  2 flows that are handed out, by when workers
--       look at them  3 the mark of this request, so that it does nothing if it is sent again
-- ARGV  1 wake channel  2 the flow  3 how many jobs it has  4 how long the mark stays in milliseconds  5 for how many
--       microseconds workers leave it alone
-- Returns  1 complete, 0 its jobs were forgotten: it took too long
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
if redis.call('HLEN', KEYS[1]) ~= tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[3], 1, 'PX', ARGV[4])
redis.call('HSET', KEYS[1], '', 0)
redis.call('PERSIST', KEYS[1])
redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[5]), ARGV[2])
redis.call('SPUBLISH', ARGV[1], 'schedule')
return 1
