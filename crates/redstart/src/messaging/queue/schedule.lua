-- Looks for what is due in the queue whether or not a worker is free: cron entries, workers whose lease ended, parked
-- jobs whose limit has passed. Removes jobs that were kept long enough, and unique keys whose time is over. Renews the
-- worker's lease, so that it does not find itself.
--
-- KEYS  1-16 as in place.lua  17 running of this worker  18 workers  19 cron  20 crontab  21 parked  22 unique keys that
--       are held for a time, by its end  23 history, by minute  24 tallies of the history  25 flows that are handed out, by when
--       workers look at them
-- ARGV  1-5 as in place.lua  6 worker  7 lease in microseconds  8 how long to keep dead letters in milliseconds (0 = for
--       ever)  9 how many of them to keep (0 = all)  10 how many minutes of history to keep
-- Returns  {microseconds until something is due (-1 = never), workers whose lease ended, kinds with parked jobs to
--           bury, now in microseconds, {id of a child and what its parent in another queue is to be told, ...}, flows that
--           nobody hands out any more, then id, tick and definition of each cron entry that is due}
local workers, cron, crontab, parked, timed = KEYS[18], KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local now = now()
local until_now = format('%.0f', now)
if redis.call('HEXISTS', KEYS[17], '') == 1 then
  redis.call('ZADD', workers, format('%.0f', now + ARGV[7]), ARGV[6])
end

local function due_before(key, time, most)
  return redis.call('ZRANGE', key, '-inf', time, 'BYSCORE', 'LIMIT', 0, most)
end
local messages = {}
local reply = { -1, due_before(workers, until_now, 16), due_before(parked, until_now, 16), until_now, messages,
  due_before(KEYS[25], until_now, 4) }
local ticks = redis.call('ZRANGE', cron, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, 32, 'WITHSCORES')
for i = 1, #ticks, 2 do
  reply[#reply + 1] = ticks[i]
  reply[#reply + 1] = format('%.0f', tonumber(ticks[i + 1]))
  reply[#reply + 1] = redis.call('HGET', crontab, ticks[i]) or ''
end

local function consider(at)
  local left = math.max(0, at - now)
  if reply[1] < 0 or left < reply[1] then reply[1] = left end
end

-- So many at a time, and the rest at once: whatever comes in must go out as fast.
local function at_most(count, list)
  if #list == count then consider(now) end
  return list
end

-- The rest at once, too, if this is as much as one script should do.
local function each(ids, work)
  for _, id in ipairs(ids) do
    if is_enough() then return consider(now) end
    spent = spent + 5
    work(id)
  end
end

each(at_most(50, due_before(done, until_now, 50)), discard)
for _, key in ipairs(at_most(40, due_before(timed, until_now, 40))) do
  redis.call('ZREM', timed, key)
  local until_us = sub(redis.call('HGET', unique, key) or '', 17)
  if until_us ~= '' and tonumber(until_us) <= now then redis.call('HDEL', unique, key) end
end

each(at_most(20, due_before(parents, until_now, 20)), function(id)
  if #id == 17 then
    -- A message that is not where it belongs.
    redis.call('ZADD', parents, format('%.0f', AWAY + now), id)
  else
    local record = redis.call('HGET', jobs, id)
    redis.call('ZREM', parents, id)
    if record and state(record) == 'w' then
      -- If it is replayed, it does not wait for children that never come.
      redis.call('HDEL', details, id .. 'w')
      bury(record, INCOMPLETE, now)
    end
  end
end)

-- What parents in other queues are to be told. Others leave it to this worker for a while, and the longer nobody could tell it
-- the longer: a queue that cannot be reached must not take up all looks.
local function due_messages(most)
  local from, till = format('%.0f', AWAY), format('%.0f', AWAY + now)
  return redis.call('ZRANGE', parents, from, till, 'BYSCORE', 'LIMIT', 0, most)
end
for _, member in ipairs(at_most(20, due_messages(20))) do
  local id = sub(member, 2)
  local message = redis.call('HGET', details, id .. 'q')
  if message then
    local age = now - (tonumber(sub(message, 1, 16)) or 0)
    local wait = math.max(5000000, math.min(age / 2, 30000000))
    redis.call('ZADD', parents, format('%.0f', AWAY + now + wait), member)
    messages[#messages + 1] = id
    messages[#messages + 1] = message
  else
    redis.call('ZREM', parents, member)
  end
end

-- What became of the children of jobs that are over.
local function is_swept()
  if is_enough() then return false end
  local member = redis.call('ZRANGE', parents, format('%.0f', SWEEP), '(9e15', 'BYSCORE', 'LIMIT', 0, 1)[1]
  if not member then return true end
  local id = sub(member, 2)
  local left = tonumber(redis.call('HGET', details, id .. 's') or 0)
  local now = math.min(left, 200)
  spent = spent + 2 * now
  forget_children(id, left - now, now)
  if left > now then
    redis.call('HSET', details, id .. 's', left - now)
  else
    redis.call('HDEL', details, id .. 's')
    redis.call('ZREM', parents, member)
  end
  return false
end
if not is_swept() then consider(now) end

local function drop(ids)
  each(ids, function(id) drop_letter(id, now) end)
end
local keep_for, keep = tonumber(ARGV[8]), tonumber(ARGV[9])
if keep_for > 0 then drop(at_most(50, due_before(dead, format('%.0f', now - keep_for * 1000), 50))) end
if keep > 0 then
  local over = redis.call('ZCARD', dead) - keep
  if over > 0 then
    drop(redis.call('ZRANGE', dead, 0, math.min(over, 50) - 1))
    if over > 50 then consider(now) end
  end
end

-- On an idle queue, or when no history is kept any more, nobody else removes the old minutes.
local minute = math.floor(now / 60000000) - tonumber(ARGV[10])
local old = at_most(100, due_before(KEYS[23], format('%.0f', minute), 100))
if #old > 0 then
  redis.call('HDEL', KEYS[24], unpack(old))
  redis.call('ZREM', KEYS[23], unpack(old))
end

for _, key in ipairs({ workers, cron, parked, KEYS[25] }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first then consider(tonumber(first)) end
end
-- What is only removed is not removed one by one: at most ten times per second.
local function consider_rest(key, after)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) < 9e15 then consider(math.max(tonumber(first) + after, now + 100000)) end
end
consider_rest(done, 0)
consider_rest(timed, 0)
consider_rest(parents, 0)
local message = redis.call('ZRANGE', parents, format('%.0f', AWAY), '(' .. format('%.0f', SWEEP), 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
if message then consider(math.max(message - AWAY, now + 100000)) end
if keep_for > 0 then consider_rest(dead, keep_for * 1000) end
return reply
