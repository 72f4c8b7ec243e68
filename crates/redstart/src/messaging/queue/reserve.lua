-- Promotes due jobs and gives a registered worker up to `want` jobs, in order of due time minus priority x boost, until
-- their size reaches a limit. Renews the worker's lease.
--
-- The epoch fences late requests: after a lost reply the worker raises it (reconcile.lua), so that the lost request
-- takes nothing if it arrives after all.
--
-- KEYS  1 ready  2 ranked  3 delayed  4 running of this worker  5 workers  6 meta  7 dead  8 idle  9 unique
-- ARGV  1 worker  2 epoch  3 want  4 lease in microseconds  5 boost in microseconds  6 promote at most
--       7 how many bytes of records at most, unless the first is larger  8 the worker's name on the wake channel
-- Returns  {0} not registered (its jobs were reclaimed), {2} another epoch, or
--          {1, microseconds until a job is due (0 = there may be more now, -1 = never), records}
local ready, ranked, delayed, running, workers = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local meta, dead, idle, unique = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local want, lease, boost, room = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7])

local epoch = redis.call('HGET', running, '')
if not epoch then return { 0 } end
if epoch ~= ARGV[2] then return { 2 } end

local now = now()
redis.call('ZADD', workers, format('%.0f', now + lease), ARGV[1])
if redis.call('HEXISTS', meta, 'paused') == 1 then
  return { 1, -1, {} }
end

local promoted = redis.call('ZRANGE', delayed, '-inf', format('%.0f', now), 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[6]))
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

-- Takes records while there is room. One is always taken, however large it is.
local taken, bytes, full = {}, 0, false
local function fits(record)
  if #taken > 0 and bytes + #record > room then
    full = true
    return false
  end
  bytes = bytes + #record
  taken[#taken + 1] = record
  return true
end

if redis.call('ZCARD', ranked) == 0 then
  -- In growing pieces, so that a few large records are not read only to be put back.
  local piece = 1
  while #taken < want and not full do
    local records = redis.call('LPOP', ready, math.min(piece, want - #taken))
    if not records then break end
    for i, record in ipairs(records) do
      if not fits(record) then
        for j = #records, i, -1 do redis.call('LPUSH', ready, records[j]) end
        break
      end
    end
    piece = piece * 4
  end
else
  local most = math.min(want, 256)
  full = want > most
  -- The first records of a container, in growing pieces too. `width` is 2 where scores are read with them.
  local function source(width, command, key, options)
    local self = { taken = 0 }
    local records, at, read, piece = {}, 1, 0, 1
    function self.first()
      if at > #records and piece > 0 then
        local count = math.min(piece, most - #taken)
        records = redis.call(command, key, read, read + count - 1, unpack(options))
        at, read = 1, read + count
        piece = #records == width * count and piece * 4 or 0
      end
      return records[at], records[at + 1]
    end
    function self.take()
      at, self.taken = at + width, self.taken + 1
    end
    return self
  end
  local plain, scored = source(1, 'LRANGE', ready, {}), source(2, 'ZRANGE', ranked, { 'WITHSCORES' })
  while #taken < most do
    local record, from, by_rank, rank = plain.first(), plain, scored.first()
    if by_rank and not (record and due(record) <= tonumber(rank)) then
      record, from = by_rank, scored
    end
    if not record then
      full = false
      break
    end
    if not fits(record) then break end
    from.take()
  end
  if plain.taken > 0 then redis.call('LTRIM', ready, plain.taken, -1) end
  if scored.taken > 0 then redis.call('ZREMRANGEBYRANK', ranked, 0, scored.taken - 1) end
end

local owned, given, n = {}, {}, 0
for _, record in ipairs(taken) do
  if well_formed(record) then
    n = n + 1
    given[n] = record
    owned[2 * n - 1] = sub(record, 18, 37)
    owned[2 * n] = record
    if uniqueness(record) == 2 then free_unique(unique, record) end
  elseif record == DELETED then
    if redis.call('HINCRBY', meta, 'deleted', -1) <= 0 then redis.call('HDEL', meta, 'deleted') end
  else
    bury(dead, record, 'corrupt record', now)
  end
end
each_piece('HSET', running, owned)

-- Deleted and corrupt records count here: behind them there may be more to take.
if full or #taken == want then
  redis.call('ZREM', idle, ARGV[8])
  return { 1, 0, given }
end
redis.call('ZADD', idle, format('%.0f', now), ARGV[8])
local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
return { 1, first and math.max(1, tonumber(first) - now) or -1, given }
