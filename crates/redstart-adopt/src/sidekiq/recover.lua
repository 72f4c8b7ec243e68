-- Gives the jobs of a consumer whose heartbeat has stopped back to their queue, where they are next. At most 100 at a time.
--
-- KEYS     1  the heartbeat (hash)
--          2  the consumer's list (list: the jobs that it ran)
--          3  the queue (list)
--          4  the names of the queues (set)
--          5  all consumers (sorted set, by the time of their last heartbeat in s)
-- ARGV     1  the consumer, as it stands in 5
--          2  the name of the queue
--          3  a consumer whose last heartbeat was before this, in s, is forgotten if it has no jobs
-- Returns  the number of jobs that were given back
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
local moved = 0
-- From the newest to the oldest: the oldest comes to stand where it is taken first.
while moved < 100 and redis.call('LMOVE', KEYS[2], KEYS[3], 'LEFT', 'RIGHT') do
  moved = moved + 1
end
if moved > 0 then
  redis.call('SADD', KEYS[4], ARGV[2])
else
  -- Not at once: a consumer that was only stopped may move one more job before its next heartbeat.
  local beat = redis.call('ZSCORE', KEYS[5], ARGV[1])
  if beat and tonumber(beat) < tonumber(ARGV[3]) then
    redis.call('ZREM', KEYS[5], ARGV[1])
  end
end
return moved
