-- Makes a delayed job ready now.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6 the job's id
-- Returns  1 made ready, 0 it is not delayed
if redis.call('ZREM', delayed, ARGV[6]) == 0 then return 0 end
local record = redis.call('HGET', jobs, ARGV[6])
if not record then return 0 end
if flag(record, 32) then
  record = without_flag(record, 32)
  free_group(record)
end
make_ready('RPUSH', { as(record, 'r', now()) })
wake(1)
return 1
