-- Pauses or resumes handing out jobs. Enqueueing and running jobs are not affected.
--
-- KEYS  1 meta
-- ARGV  1 wake channel  2 '1' pause, '0' resume
-- Returns  1
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'paused', 1)
else
  redis.call('HDEL', KEYS[1], 'paused')
  -- Workers that found the queue paused did not report that they are idle.
  redis.call('SPUBLISH', ARGV[1], 'look')
end
return 1
