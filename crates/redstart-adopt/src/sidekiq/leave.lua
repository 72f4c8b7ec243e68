-- Takes a consumer that has ended off the lists of processes and, if it left no job, of consumers.
--
-- KEYS     1  the names of Sidekiq's processes (set)
--          2  the heartbeat (hash)
--          3  the consumer's list (list: the jobs that it ran)
--          4  all consumers (sorted set)
-- ARGV     1  the name of the process
--          2  the consumer, as it stands in 4
--          3  1 if no job can come into the list any more
-- Returns  1 if the consumer is forgotten, else 0
redis.call('SREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[3]) == 0 then
  return redis.call('ZREM', KEYS[4], ARGV[2])
end
return 0
