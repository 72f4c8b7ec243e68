-- Moves jobs that are due to their queues, in one step; Sidekiq itself takes each out and pushes it in two. At most 100 at a time.
--
-- KEYS     1  the retries or the scheduled jobs (sorted set)
--          2  the names of the queues (set)
--          3  the dead jobs (sorted set), for what is no job
--          4… the queue of each job (list)
-- ARGV     1  the time in s
--          2… for each job: as it stands in 1; the name of its queue, empty for what is no job; as it is pushed
-- Returns  the number of jobs that were moved; others may have been moved by another process
local moved = 0
for n = 0, #KEYS - 4 do
  local job, queue, pushed = ARGV[2 + 3 * n], ARGV[3 + 3 * n], ARGV[4 + 3 * n]
  if redis.call('ZREM', KEYS[1], job) == 1 then
    if queue == '' then
      redis.call('ZADD', KEYS[3], ARGV[1], job)
    else
      redis.call('SADD', KEYS[2], queue)
      redis.call('LPUSH', KEYS[4 + n], pushed)
    end
    moved = moved + 1
  end
end
return moved
