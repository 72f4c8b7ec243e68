-- Stops or lets go on the handing out of jobs; enqueueing and running jobs are not touched.
--
-- KEYS  1 meta
-- ARGV  1 wake channel  2 '1' pause, '0' resume
-- Returns  1
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'paused', 1)
else
  redis.call('HDEL', KEYS[1], 'paused')
  -- Workers that found the queue paused did not say that they are hungry.
  redis.call('SPUBLISH', ARGV[1], '')
end
return 1
