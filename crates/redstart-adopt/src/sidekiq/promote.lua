-- Moves a job that is due to its queue, in one step; Sidekiq itself takes it out and pushes it in two.
--
-- KEYS     1  the retries or the scheduled jobs (sorted set)
--          2  the names of the queues (set)
--          3  the queue (list), or the dead jobs (sorted set) for what is no job
-- ARGV     1  the job as it stands in 1
--          2  the name of its queue; empty for what is no job
--          3  the job as it is pushed, or the time in s for what is no job
-- Returns  1, or 0 if another process has moved it
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if ARGV[2] == '' then
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
else
  redis.call('SADD', KEYS[2], ARGV[2])
  redis.call('LPUSH', KEYS[3], ARGV[3])
end
return 1
