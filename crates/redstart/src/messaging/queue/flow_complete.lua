-- All jobs of a large flow are there: from now on it is in the queue, and none of it can be missing. Its first job, for which
-- all others are, is handed out at once, so that it is found. Whoever adds it hands out the others, or a worker if it is not
-- heard of.
--
-- KEYS  1-16 as in place.lua  17 the flow's jobs, by number; the field '' is the next to be handed out  18 flows that are handed
--       out, by when workers look at them  19 the mark of this request, so that it does nothing if it is sent again
-- ARGV  1-5 as in place.lua  6 the flow  7 how many jobs it has  8 how long the mark stays in milliseconds  9 for how many
--       microseconds workers leave it alone
-- Returns  1 complete, 0 its jobs were forgotten: it took too long
-- After flow_jobs.lua too.
local staged, flows, mark = KEYS[17], KEYS[18], KEYS[19]
-- The mark may have been evicted.
if redis.call('EXISTS', mark) == 1 or redis.call('HEXISTS', staged, '') == 1 then return 1 end
if redis.call('HLEN', staged) ~= tonumber(ARGV[7]) then return 0 end
local now = now()
redis.call('SET', mark, 1, 'PX', ARGV[8])
add_jobs({ staged_job(redis.call('HGET', staged, '0')) }, '+inf', now)
redis.call('HDEL', staged, '0')
redis.call('HSET', staged, '', 1)
redis.call('PERSIST', staged)
redis.call('ZADD', flows, format('%.0f', now + ARGV[9]), ARGV[6])
redis.call('SPUBLISH', channel, 'schedule')
return 1
