-- Removes a reader; the last one wakes the waiters.
--
-- KEYS     1  unused here: the writer
--          2  the readers (sorted set: token -> end of its lease in us)
--          3-4  unused here: the waiting writers, the last fence token
-- ARGV     1  the reader's token
--          2  the channel on which waiters listen
-- Returns  1 if the lease still ran, else 0
local at = now()
local ran = leases.drop(KEYS[2], ARGV[1], at)
if ran == nil then
  return 0
end
leases.reap(KEYS[2], at)
if leases.count(KEYS[2], at) == 0 then
  redis.call('SPUBLISH', ARGV[2], '')
end
return ran and 1 or 0
