-- Gives the jobs of a consumer whose heartbeat has stopped back to their queue, where they are next. A job that was given back too often stays, and is
-- returned: it may be what kills its consumers. At most 50 at a time.
--
-- KEYS     1  the heartbeat (hash)
--          2  the consumer's list (list: the jobs that it ran)
--          3  the queue (list)
--          4  the names of the queues (set)
--          5  all consumers (sorted set, by the time of their last heartbeat in s)
--          6  how often jobs were given back (hash: the SHA-1 of the job, the count)
-- ARGV     1  the consumer, as it stands in 5
--          2  the name of the queue
--          3  a consumer whose last heartbeat was before this, in s, is forgotten if it has no jobs
--          4  how often a job is given back
--          5  how long the counts are kept, in s
-- Returns  {the number of jobs that were given back, the number that was looked at, those that stay}
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {0, 0, {}}
end
local moved, stay = 0, {}
local length = math.min(50, redis.call('LLEN', KEYS[2]))
for n = 1, length do
  local job = redis.call('LINDEX', KEYS[2], 0)
  if redis.call('HINCRBY', KEYS[6], redis.sha1hex(job), 1) > tonumber(ARGV[4]) then
    redis.call('LMOVE', KEYS[2], KEYS[2], 'LEFT', 'RIGHT')
    stay[#stay + 1] = job
  else
    -- From the newest to the oldest: the oldest comes to stand where it is taken first.
    redis.call('LMOVE', KEYS[2], KEYS[3], 'LEFT', 'RIGHT')
    moved = moved + 1
  end
end
if length > 0 then
  redis.call('EXPIRE', KEYS[6], ARGV[5])
end
if moved > 0 then
  redis.call('SADD', KEYS[4], ARGV[2])
elseif length == 0 then
  -- Not at once: a consumer that was only stopped may move one more job before its next heartbeat.
  local beat = redis.call('ZSCORE', KEYS[5], ARGV[1])
  if beat and tonumber(beat) < tonumber(ARGV[3]) then
    redis.call('ZREM', KEYS[5], ARGV[1])
  end
end
return {moved, length, stay}
