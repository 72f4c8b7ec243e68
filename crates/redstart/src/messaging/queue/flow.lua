-- Adds jobs of a flow, parents before their children: a parent waits until its children are over.
--
-- KEYS  1-16 as in place.lua  17 the mark of this request, so that it adds nothing if it is sent again
-- ARGV  1-5 as in place.lua  6 capacity (0 = none)  7 microseconds after which a parent is buried unless the flow is
--       closed (0 = this call has all of it)  8 how long the mark stays in milliseconds  then for each job: how many
--       children it has, its record from byte 35 on
-- Returns  1 added, 0 full
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
local stamp = math.max(now, tonumber(redis.call('HGET', meta, 'stamp') or 0) + 1)
local leaves, ids, in_group = {}, {}, false
for i = 9, #ARGV, 2 do
  local children = tonumber(ARGV[i])
  local record = 'Jr' .. digits(now) .. digits(stamp) .. ARGV[i + 1]
  local id = id_of(record)
  stamp = stamp + 1
  ids[#ids + 1] = id
  in_group = in_group or group_of(record)
  if children == 0 then
    leaves[#leaves + 1] = record
  else
    redis.call('HSET', jobs, id, as(record, 'w', now))
    redis.call('HSET', details, id .. 'w', children)
    redis.call('ZADD', parents, open > 0 and format('%.0f', now + open) or '+inf', id)
  end
end
if in_group then redis.call('HSET', meta, 'stamp', format('%.0f', stamp)) end
make_ready('RPUSH', leaves)
event('added', table.concat(ids))
wake(#leaves)
return 1
