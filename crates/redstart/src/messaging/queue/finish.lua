-- Writes how deliveries ended, many at once. Only the owner's are accepted: a worker whose lease ended and whose jobs
-- went to others is refused as a whole, and a delivery that it no longer holds is skipped.
--
-- KEYS  1 running of this worker  2 ready  3 ranked  4 delayed  5 dead  6 idle  7 unique  8 progress  9 done
--       10 parked  11... parked jobs of the kinds that are parked by this call
-- ARGV  1 wake channel  2 boost in microseconds  3 how many done records to keep (0 = none)
--       4 how long to keep them in milliseconds (0 = for ever)  5 how long to park in microseconds
--       6 number of unique keys to free, then delivery and key for each
--         number of deliveries whose progress to forget, then the deliveries
--         number of done, then that many deliveries
--         number to retry, then delivery and microseconds to wait for each
--         number dead, then delivery and reason for each
--         number to hand back unstarted, then their deliveries
--         number to park, then delivery, number of its key among KEYS, kind and reason for each
-- Returns  0 refused, 1 written
local running, ready, ranked, delayed, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local idle, unique, progress, done, parked = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local channel, boost, keep, keep_for = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call('HEXISTS', running, '') == 0 then return 0 end
local time = now()

local at = 6
local function section(width)
  local first = at + 1
  local last = at + tonumber(ARGV[at]) * width
  at = last + 1
  return first, last
end

-- Takes a delivery out of the worker's hands; nil if it no longer holds it.
local function take(delivery)
  local record = redis.call('HGET', running, delivery)
  if record then redis.call('HDEL', running, delivery) end
  return record
end

-- These two come first, while it can still be seen whether the delivery is held.
local first, last = section(2)
for i = first, last, 2 do
  if redis.call('HEXISTS', running, ARGV[i]) == 1 and redis.call('HGET', unique, ARGV[i + 1]) == sub(ARGV[i], 1, 16) then
    redis.call('HDEL', unique, ARGV[i + 1])
  end
end
first, last = section(1)
for i = first, last do
  if redis.call('HEXISTS', running, ARGV[i]) == 1 then redis.call('HDEL', progress, sub(ARGV[i], 1, 16)) end
end

first, last = section(1)
if keep > 0 and first <= last then
  for i = first, last do
    local record = redis.call('HGET', running, ARGV[i])
    if record then
      redis.call('XADD', done, 'MAXLEN', '~', keep, '*', 'record', record, 'at', format('%.0f', time))
    end
  end
  -- Workers trim it by age; if there are none, it expires as a whole.
  if keep_for > 0 then redis.call('PEXPIRE', done, keep_for) end
end
for i = first, last, CHUNK do
  redis.call('HDEL', running, unpack(ARGV, i, math.min(i + CHUNK - 1, last)))
end

first, last = section(2)
local soonest
for i = first, last, 2 do
  local record = take(ARGV[i])
  if record then
    local wait = tonumber(ARGV[i + 1])
    redis.call('ZADD', delayed, format('%.0f', time + wait), ready_at(charged(record), time + wait))
    if not soonest or wait < soonest then soonest = wait end
  end
end
if soonest then announce(idle, channel, soonest) end

first, last = section(2)
for i = first, last, 2 do
  local record = take(ARGV[i])
  if record then bury(dead, charged(record), ARGV[i + 1], time) end
end

first, last = section(1)
local back = {}
for i = last, first, -1 do
  local record = take(ARGV[i])
  if record then back[#back + 1] = handed_back(record) end
end
make_ready('LPUSH', ready, ranked, boost, back)
wake(idle, channel, #back)

first, last = section(4)
local kinds = {}
for i = first, last, 4 do
  local record = take(ARGV[i])
  if record then
    -- Parked again, it keeps its limit.
    if byte(record, 40) < 4 then
      record = ready_at(record, time)
      record = sub(record, 1, 39) .. char(byte(record, 40) + 4) .. sub(record, 41)
    end
    local limit = due(record) + tonumber(ARGV[5])
    if limit <= time then
      bury(dead, record, ARGV[i + 3], time)
      free_unique(unique, record)
    else
      local kind = ARGV[i + 2]
      limit = format('%.0f', limit)
      redis.call('ZADD', KEYS[tonumber(ARGV[i + 1])], limit, handed_back(record))
      -- Of a new kind the schedulers do not know yet when it is due.
      if redis.call('ZADD', parked, 'LT', limit, kind) == 1 then redis.call('SPUBLISH', channel, 'schedule') end
      if not kinds[kind] then
        kinds[kind] = true
        redis.call('SPUBLISH', channel, 'parked ' .. kind)
      end
    end
  end
end
return 1
