-- Adds jobs of a flow, parents before their children: a parent waits until its children are over.
--
-- KEYS  1-16 as in place.lua  17 the mark of this request, so that it adds nothing if it is sent again
-- ARGV  1-5 as in place.lua  6 capacity (0 = none)  7 microseconds after which a parent is buried unless the flow is
--       closed (0 = this call has all of it)  8 how long the mark stays in milliseconds  then for each job: how many
--       children it has, its record from byte 35 on
-- Returns  1 added, 0 full
-- After flow_jobs.lua too.
-- Its jobs may be over by now.
if redis.call('EXISTS', KEYS[17]) == 1 then return 1 end
local capacity, open, now = tonumber(ARGV[6]), tonumber(ARGV[7]), now()
if capacity > 0 then
  local waiting = redis.call('LLEN', ready) + redis.call('ZCARD', ranked) + redis.call('ZCARD', delayed)
    + redis.call('ZCARD', grouped) + redis.call('ZCARD', parents) - count_messages()
    - tonumber(redis.call('HGET', meta, 'deleted') or 0)
  if waiting + (#ARGV - 8) / 2 > capacity then return 0 end
end
redis.call('SET', KEYS[17], 1, 'PX', ARGV[8])
local nodes = {}
for i = 9, #ARGV, 2 do nodes[#nodes + 1] = { tonumber(ARGV[i]), ARGV[i + 1] } end
add_jobs(nodes, open > 0 and format('%.0f', now + open) or '+inf', now)
return 1
