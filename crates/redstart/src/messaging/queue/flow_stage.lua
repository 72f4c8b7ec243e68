-- Puts jobs of a large flow where nobody takes them, until all of it is there.
--
-- KEYS  1 the flow's jobs, by number  2 flows that are handed out, by when workers look at them
-- ARGV  1 microseconds after which workers remove them, unless there are more by then  2 number of the first
--       3 milliseconds after which they are forgotten if there is no worker  4 the flow
--       5... for each job: how many children it has, a colon, its record from byte 35 on
-- Returns  1
-- This may be a late copy of a request: the flow is complete.
if redis.call('HEXISTS', KEYS[1], '') == 1 then return 1 end
local first, fields = tonumber(ARGV[2]), {}
for i = 5, #ARGV do
  fields[#fields + 1] = format('%.0f', first + i - 5)
  fields[#fields + 1] = ARGV[i]
end
each_piece('HSET', KEYS[1], fields)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[1]), ARGV[4])
return 1
