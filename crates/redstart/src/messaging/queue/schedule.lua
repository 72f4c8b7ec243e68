-- Looks for what is due in the queue whether or not a worker is free: cron entries, workers whose lease ended, parked
-- jobs whose limit has passed. Removes done records that were kept long enough. Renews the worker's lease, so that it
-- does not find itself.
--
-- KEYS  1 workers  2 cron  3 crontab  4 parked  5 done  6 running of this worker
-- ARGV  1 how long to keep done records in milliseconds (0 = for ever)  2 worker  3 lease in microseconds
-- Returns  {microseconds until something is due (-1 = never), workers whose lease ended, kinds with parked jobs to
--           bury, now in microseconds, then id, tick and definition of each cron entry that is due}
local workers, cron, crontab, parked, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local keep_for = tonumber(ARGV[1])
local now = now()
local until_now = format('%.0f', now)
if redis.call('HEXISTS', KEYS[6], '') == 1 then
  redis.call('ZADD', workers, format('%.0f', now + ARGV[3]), ARGV[2])
end

local function due_before(key, most)
  return redis.call('ZRANGE', key, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, most)
end
local reply = { -1, due_before(workers, 16), due_before(parked, 16), until_now }
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
for _, key in ipairs({ workers, cron, parked }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first then consider(tonumber(first)) end
end
if keep_for > 0 and redis.call('EXISTS', done) == 1 then
  redis.call('XTRIM', done, 'MINID', format('%.0f', math.floor(now / 1000) - keep_for + 1))
  local oldest = redis.call('XRANGE', done, '-', '+', 'COUNT', 1)[1]
  if oldest then
    -- Not for each record by itself: after a tenth of the time at the earliest.
    local at = (tonumber(string.match(oldest[1], '^%d+')) + keep_for) * 1000
    consider(math.max(at, now + keep_for * 100))
  end
end
return reply
