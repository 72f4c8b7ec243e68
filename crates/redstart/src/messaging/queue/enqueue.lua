-- Adds jobs that share delay and priority. All of them or, at capacity or for a taken unique key, none.
--
-- KEYS  1 ready  2 ranked  3 delayed  4 idle  5 unique  6 meta
--       7 (with a unique key) the mark of this request, so that it adds nothing if it is sent again
-- ARGV  1 wake channel  2 capacity (0 = none)  3 delay in microseconds  4 priority  5 boost in microseconds
--       6 unique key ('' = none)  7 how long the mark stays in milliseconds  8... the records from byte 18 on
-- Returns  {1} added, {0} full, {2, id} the unique key is held by that job
local ready, ranked, delayed, idle, unique, meta, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local capacity, delay, level, boost = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local count = #ARGV - 7

if ARGV[6] ~= '' then
  -- The job may be done by now, so that its key is free again.
  if redis.call('EXISTS', mark) == 1 then return { 1 } end
  local holder = redis.call('HGET', unique, ARGV[6])
  if holder then return { 2, holder } end
end
if capacity > 0 then
  local waiting = redis.call('LLEN', ready) + redis.call('ZCARD', ranked) + redis.call('ZCARD', delayed)
    - tonumber(redis.call('HGET', meta, 'deleted') or 0)
  if waiting + count > capacity then return { 0 } end
end
if ARGV[6] ~= '' then
  redis.call('HSET', unique, ARGV[6], sub(ARGV[8], 1, 16))
  redis.call('SET', mark, 1, 'PX', ARGV[7])
end

local due_at = now() + delay
local head = 'J' .. digits(due_at)
local list = {}
if delay > 0 then
  local score = format('%.0f', due_at)
  for i = 8, #ARGV do
    list[#list + 1] = score
    list[#list + 1] = head .. ARGV[i]
  end
  each_piece('ZADD', delayed, list)
  -- Workers sleep until the first delayed job is due; only a new first one matters to them.
  if tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]) >= due_at then
    announce(idle, ARGV[1], delay)
  end
  return { 1 }
elseif level ~= 0 then
  local score = format('%.0f', due_at - level * boost)
  for i = 8, #ARGV do
    list[#list + 1] = score
    list[#list + 1] = head .. ARGV[i]
  end
  each_piece('ZADD', ranked, list)
else
  for i = 8, #ARGV do
    list[i - 7] = head .. ARGV[i]
  end
  each_piece('RPUSH', ready, list)
end
wake(idle, ARGV[1], count)
return { 1 }
