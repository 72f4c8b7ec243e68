-- Ends a job that a consumer has: it leaves the consumer's list and, if it failed, goes to the retries or to the dead jobs, in one step.
--
-- KEYS     1  the consumer's list (list: the jobs that it runs)
--          2  the retries (sorted set)
--          3  the dead jobs (sorted set)
--          4, 5  the counters of processed jobs: all, today
--          6, 7  the counters of failed jobs: all, today
--          8  how often jobs were given back (hash: the SHA-1 of the job, the count)
-- ARGV     1  the job as it stands in the list
--          2  'done', 'retry', 'dead' or 'drop' (failed, and not kept)
--          3  the job as it is kept, for 'retry' and 'dead'
--          4  when it is retried in s, for 'retry'
--          5  the time in s
-- Returns  1, or 0 if the job is not in the list any more: another consumer has it
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
  return 0
end
local five_years, half_a_year = 5 * 365 * 86400, 180 * 86400
redis.call('HDEL', KEYS[8], redis.sha1hex(ARGV[1]))
redis.call('INCR', KEYS[4])
redis.call('INCR', KEYS[5])
redis.call('EXPIRE', KEYS[5], five_years)
if ARGV[2] == 'done' then
  return 1
end
redis.call('INCR', KEYS[6])
redis.call('INCR', KEYS[7])
redis.call('EXPIRE', KEYS[7], five_years)
if ARGV[2] == 'retry' then
  redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
elseif ARGV[2] == 'dead' then
  redis.call('ZADD', KEYS[3], ARGV[5], ARGV[3])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', tonumber(ARGV[5]) - half_a_year))
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -10001)
end
return 1
