-- Writes how deliveries ended, many at once. Only the owner's are accepted: a worker whose lease ended and whose jobs
-- went to others is refused as a whole, and a delivery that it no longer holds is skipped.
--
-- KEYS  1 running of this worker  2 ready  3 ranked  4 delayed  5 dead  6 meta  7 unique  8 progress  9 done
-- ARGV  1 wake channel  2 boost in microseconds  3 how many done records to keep (0 = none)
--       4 how long to keep them in milliseconds (0 = for ever)
--       5 number of done, then that many deliveries
--         number to retry, then delivery and microseconds to wait for each
--         number dead, then delivery and reason for each
--         number to hand back unstarted, then their deliveries
--         number of unique keys to free, then key and job id for each
--         number of ids with progress to forget, then the ids
-- Returns  0 refused, 1 written
local running, ready, ranked, delayed, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local meta, unique, progress, done = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local boost, keep, keep_for = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call('HEXISTS', running, '') == 0 then return 0 end

local at = 5
local function section(width)
  local first = at + 1
  local last = at + tonumber(ARGV[at]) * width
  at = last + 1
  return first, last
end

local first, last = section(1)
if keep > 0 then
  local now = now()
  for i = first, last do
    local record = redis.call('HGET', running, ARGV[i])
    if record then
      redis.call('XADD', done, 'MAXLEN', '~', keep, '*', 'record', record, 'at', format('%.0f', now))
    end
  end
  if keep_for > 0 then
    redis.call('XTRIM', done, 'MINID', '~', format('%.0f', now / 1000 - keep_for))
  end
end
for i = first, last, CHUNK do
  redis.call('HDEL', running, unpack(ARGV, i, math.min(i + CHUNK - 1, last)))
end

first, last = section(2)
local woken = false
if first <= last then
  local now = now()
  for i = first, last, 2 do
    local record = redis.call('HGET', running, ARGV[i])
    if record then
      local when = now + ARGV[i + 1]
      redis.call('HDEL', running, ARGV[i])
      redis.call('ZADD', delayed, format('%.0f', when), ready_at(charged(record), when))
      woken = true
    end
  end
end

first, last = section(2)
if first <= last then
  local now = now()
  for i = first, last, 2 do
    local record = redis.call('HGET', running, ARGV[i])
    if record then
      redis.call('HDEL', running, ARGV[i])
      bury(dead, charged(record), ARGV[i + 1], now)
    end
  end
end

first, last = section(1)
local back = {}
for i = last, first, -1 do
  local record = redis.call('HGET', running, ARGV[i])
  if record then
    redis.call('HDEL', running, ARGV[i])
    back[#back + 1] = handed_back(record)
  end
end
make_ready('LPUSH', ready, ranked, boost, back)

first, last = section(2)
for i = first, last, 2 do
  if redis.call('HGET', unique, ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', unique, ARGV[i])
  end
end

first, last = section(1)
for i = first, last do
  redis.call('HDEL', progress, ARGV[i])
end

if woken or #back > 0 then wake(meta, ARGV[1]) end
return 1
