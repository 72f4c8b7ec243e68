-- Ends a job that waits, at once, or tells the worker that runs it.
--
-- KEYS  1-16 as in place.lua  17 parked jobs of its kind
-- ARGV  1-5 as in place.lua  6 the job's id  7 the id as text  8 'cancel'; 'withdraw': only if it waits; or
--       'delete': only if it waits, and it is not kept
-- Returns  0 there is no such job, or it is over; 1 it will not run; 2 it runs, and its worker was told
local id = ARGV[6]
local record = redis.call('HGET', jobs, id)
if not record or not well_formed(record) then return 0 end
local letter, now = state(record), now()
if letter == 'z' then return 0 end
if letter == 'x' then
  if ARGV[8] ~= 'cancel' then return 0 end
  local taken, worker, since = released(record)
  redis.call('HSET', jobs, id, held(with_flag(taken, 16), holder(worker, since)))
  -- Found by the worker's heartbeat if the message is lost.
  if redis.call('HSETNX', meta, 'c:' .. id, 1) == 1 then redis.call('HINCRBY', meta, 'cancels', 1) end
  redis.call('SPUBLISH', channel .. ':' .. worker, 'cancel ' .. ARGV[7])
  return 2
end
if letter == 'r' then
  local group = group_of(record)
  if group then
    redis.call('ZREM', grouped, place_in_group(group, record))
    -- The group may have waited for a place of this job's kind.
    if line_of(record) then
      enter_round(group)
      wake(1)
    end
  elseif priority(record) ~= 0 then
    redis.call('ZREM', ranked, id)
  else
    -- Its place in the list is passed over.
    redis.call('HINCRBY', meta, 'deleted', 1)
  end
elseif letter == 'l' then
  redis.call('ZREM', delayed, id)
elseif letter == 'p' then
  redis.call('ZREM', KEYS[17], id)
elseif letter == 'w' then
  redis.call('ZREM', parents, id)
end
if flag(record, 32) then free_group(record) end
if ARGV[8] == 'delete' then
  free_unique(record)
  forget(record)
  redis.call('HDEL', jobs, id)
  tell(record, 'c')
  child_ended(record, 'c', 'deleted', now)
else
  conclude(record, 'c', '', now)
  trim_done(1)
end
event('cancelled', id)
return 1
