-- Promotes due jobs and gives a registered worker up to `want` jobs, in order of due time minus
-- priority x boost. Renews the worker's lease.
--
-- The epoch fences late requests: after a lost reply the worker raises it (reconcile.lua), so that the lost request
-- takes nothing if it arrives after all.
--
-- KEYS  1 ready  2 ranked  3 delayed  4 running of this worker  5 workers  6 meta  7 dead  8 cron  9 unique
-- ARGV  1 worker  2 epoch  3 want  4 lease in microseconds  5 boost in microseconds  6 promote at most
-- Returns  {0} not registered (its jobs were reclaimed), {2} another epoch, or
--          {1, microseconds until something is due (-1 = never), expired workers, whether a cron entry is due, records}
local ready, ranked, delayed, running, workers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local meta, dead, cron, unique = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local want, lease, boost = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local epoch = redis.call('HGET', running, '')
if not epoch then return { 0 } end
if epoch ~= ARGV[2] then return { 2 } end

local now = now()
local until_now = format('%.0f', now)
redis.call('ZADD', workers, format('%.0f', now + lease), ARGV[1])
local expired = redis.call('ZRANGE', workers, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, 16)
if redis.call('HEXISTS', meta, 'paused') == 1 then
  return { 1, -1, expired, 0, {} }
end

local promoted = redis.call('ZRANGE', delayed, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[6]))
if #promoted > 0 then
  local good = {}
  for _, record in ipairs(promoted) do
    if well_formed(record) then
      good[#good + 1] = record
    else
      bury(dead, record, 'corrupt record', now)
    end
  end
  make_ready('RPUSH', ready, ranked, boost, good)
  redis.call('ZREMRANGEBYRANK', delayed, 0, #promoted - 1)
end

local taken
if redis.call('ZCARD', ranked) == 0 then
  taken = redis.call('LPOP', ready, want) or {}
else
  local plain = redis.call('LRANGE', ready, 0, want - 1)
  local scored = redis.call('ZRANGE', ranked, 0, want - 1, 'WITHSCORES')
  local p, s = 1, 1
  taken = {}
  while #taken < want and (plain[p] or scored[s]) do
    if plain[p] and (not scored[s] or due(plain[p]) <= tonumber(scored[s + 1])) then
      taken[#taken + 1] = plain[p]
      p = p + 1
    else
      taken[#taken + 1] = scored[s]
      s = s + 2
    end
  end
  if p > 1 then redis.call('LTRIM', ready, p - 1, -1) end
  if s > 1 then redis.call('ZREMRANGEBYRANK', ranked, 0, (s - 1) / 2 - 1) end
end

local owned, given, n = {}, {}, 0
for _, record in ipairs(taken) do
  if well_formed(record) then
    n = n + 1
    given[n] = record
    owned[2 * n - 1] = sub(record, 18, 37)
    owned[2 * n] = record
    if byte(record, 40) == 2 then free_unique(unique, record) end
  else
    bury(dead, record, 'corrupt record', now)
  end
end
each_piece('HSET', running, owned)

local tick = redis.call('ZRANGE', cron, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, 1)
local wait = 0
-- Corrupt entries count here: with them in the way there may be more to take.
if #taken < want then
  redis.call('HSET', meta, 'hungry', 1)
  wait = -1
  for _, key in ipairs({ delayed, workers, cron }) do
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[2] then
      local left = math.max(0, tonumber(first[2]) - now)
      if wait < 0 or left < wait then wait = left end
    end
  end
end
return { 1, wait, expired, #tick, given }
