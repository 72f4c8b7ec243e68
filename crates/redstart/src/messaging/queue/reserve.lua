-- Promotes due jobs and gives a registered worker up to `want` jobs, in order of due time minus priority x boost, until
-- their size reaches a limit. Where groups have jobs too, every second one is a group's, of each group in turn. Renews
-- the worker's lease.
--
-- The epoch fences late requests: after a lost reply the worker raises it (reconcile.lua), so that the lost request
-- takes nothing if it arrives after all.
--
-- KEYS  1-16 as in place.lua  17 running of this worker  18 workers  19 when each rate limit is free again
--       20 lines of kinds: line .. '\0' .. turn (16 digits) .. group for a group whose first job waits for a place of its kind,
--       in lexical order, and '\0' .. line .. '\0' .. group for each of them
--       21, 22 (with a kind in ARGV 20) parked jobs of that kind, by their limit; parked
-- ARGV  1-5 as in place.lua  6 worker  7 epoch  8 want  9 lease in microseconds  10 promote at most
--       11 how many bytes of records at most, unless the first is larger  12 the worker's name on the wake channel
--       13 how many jobs may run at a time in the whole queue (0 = any)
--       14, 15 rate limit of the queue: microseconds per job (0 = none), jobs at once
--       16, 17, 18 for each group: jobs at a time, microseconds per job, jobs at once
--       19 attempts at most, for jobs that have no limit of their own
--       20 a kind of job that this worker knows, to take parked ones too ('' = none)  21 how many of them to skip: this
--       worker could not decode them
--       22... for a kind of job: name, jobs at a time, microseconds per job, jobs at once
-- Returns  {0} not registered (its jobs were reclaimed), {2} another epoch, or
--          {1, microseconds until a job is due (0 = there may be more now, -1 = never), records, now, parked jobs of the
--          kind behind those skipped: 0 there were none, 1 there may be more, 2 limits keep them from running, 3 all taken}
local running, workers, rates, lines = KEYS[17], KEYS[18], KEYS[19], KEYS[20]
local want, lease, room = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[11])
local worker = ARGV[12]

local epoch = redis.call('HGET', running, '')
if not epoch then return { 0 } end
if epoch ~= ARGV[7] then return { 2 } end

local now = now()
local until_now = format('%.0f', now)
redis.call('ZADD', workers, format('%.0f', now + lease), ARGV[6])
if redis.call('HEXISTS', meta, 'paused') == 1 then
  return { 1, -1, {}, until_now, 0 }
end

local promoted = redis.call('ZRANGE', delayed, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[10]))
if #promoted > 0 then
  local records, good = redis.call('HMGET', jobs, unpack(promoted)), {}
  for i, id in ipairs(promoted) do
    local record = records[i]
    if record and well_formed(record) then
      if flag(record, 32) then
        record = without_flag(record, 32)
        free_group(record)
      end
      good[#good + 1] = 'Jr' .. sub(record, 3)
    elseif record then
      redis.call('ZADD', dead, until_now, id)
      redis.call('HSET', details, id .. 'x', 'corrupt record')
    end
  end
  make_ready('RPUSH', good)
  redis.call('ZREMRANGEBYRANK', delayed, 0, #promoted - 1)
end
for _, group in ipairs(redis.call('ZRANGE', resting, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, 50)) do
  redis.call('ZREM', resting, group)
  enter_round(group)
end

-- Limits that are free again are as good as unknown; so many go at a time.
local function forget_free_rates()
  local free = redis.call('ZRANGE', rates, '-inf', until_now, 'BYSCORE', 'LIMIT', 0, 100)
  if #free > 0 then redis.call('ZREM', rates, unpack(free)) end
end

-- When a rate limit is free again. That is never further away than its jobs at once are worth, unless the clock was put
-- back or the limit was another one; then it is corrected.
local function free_again(name, every, burst)
  local free_at, last = tonumber(redis.call('ZSCORE', rates, name) or 0), now + every * burst
  if free_at > last then
    free_at = last
    redis.call('ZADD', rates, format('%.0f', last), name)
  end
  return math.max(now, free_at)
end

-- How long until a limit lets one more job start, and a function that counts it.
local function admit(name, every, burst)
  local free_at = free_again(name, every, burst)
  local early = free_at - now - every * (burst - 1)
  if early > 0 then return early end
  return 0, function() redis.call('ZADD', rates, format('%.0f', free_at + every), name) end
end

local later = -1
local function look_after(micros)
  if later < 0 or micros < later then later = micros end
end

-- Whether a limit of concurrency keeps jobs from running.
local crowded = false
local most = tonumber(ARGV[13])
if most > 0 then
  local free = most - tonumber(redis.call('HGET', meta, 'running') or 0)
  if free < want then
    want, crowded = math.max(0, free), true
    redis.call('HSET', meta, 'hungry', 1)
  end
end
local queue_every, queue_burst = tonumber(ARGV[14]), tonumber(ARGV[15])
if queue_every > 0 then
  forget_free_rates()
  local free_at = free_again('', queue_every, queue_burst)
  local allowed = math.floor((now + queue_every * queue_burst - free_at) / queue_every)
  if allowed < want then
    want = math.max(0, allowed)
    look_after(math.max(1, free_at + queue_every * (allowed + 1) - queue_every * queue_burst - now))
  end
end

-- Takes records while there is room. One is always taken, however large it is.
local taken, bytes, full, looked = {}, 0, false, 0
local function fits(record)
  if #taken > 0 and bytes + #record > room then
    full = true
    return false
  end
  bytes = bytes + #record
  taken[#taken + 1] = record
  return true
end

local function has_expired(record)
  local expires = flag(record, 64) and extra(record, 'e')
  return expires and created(record) + tonumber(expires) * 1000 < now
end

-- Jobs that expired. They are concluded after all containers were read: a parent that runs now would change what is read.
local expired = {}

-- Whether a job that was found under this id can be given to a worker. One that cannot is dealt with.
local function startable(id, record, in_list)
  looked = looked + 1
  local whole = record and well_formed(record)
  -- A job that was deleted, or one that is elsewhere.
  if not record or whole and byte(record, 2) ~= 114 and string.find('lxpwz', state(record), 1, true) then
    if in_list and redis.call('HINCRBY', meta, 'deleted', -1) <= 0 then redis.call('HDEL', meta, 'deleted') end
    return false
  end
  if not whole then
    redis.call('ZADD', dead, until_now, id)
    redis.call('HSET', details, id .. 'x', 'corrupt record')
    return false
  end
  if has_expired(record) then
    expired[#expired + 1] = record
    return false
  end
  return true
end

-- A piece of this size is looked at next; deleted and expired jobs count, so that a script ends.
local function next_piece(piece, limit)
  if looked >= limit + 100 then
    full = true
    return 0
  end
  return math.min(piece, limit - #taken, 2000)
end

local function take_in_order(limit)
  -- In growing pieces, so that a few large records are not read only to be put back.
  local piece = 4
  while #taken < limit and not full do
    local count = next_piece(piece, limit)
    local ids = count > 0 and redis.call('LPOP', ready, count)
    if not ids then break end
    local records = redis.call('HMGET', jobs, unpack(ids))
    for i = 1, #ids do
      if startable(ids[i], records[i], true) and not fits(records[i]) then
        for j = #ids, i, -1 do redis.call('LPUSH', ready, ids[j]) end
        break
      end
    end
    piece = piece * 8
  end
end

local function take_by_rank(limit)
  local most = math.min(limit, #taken + 256)
  -- The first jobs of a container, in growing pieces too. `width` is 2 where scores are read with them.
  local function source(width, command, key, options, in_list)
    local self = { taken = 0 }
    local ids, records, at, read, piece = {}, {}, 1, 0, 1
    function self.first()
      while true do
        if at > #ids and piece > 0 then
          local count = next_piece(piece, most)
          local found = count > 0 and redis.call(command, key, read, read + count - 1, unpack(options)) or {}
          ids, at, read = {}, 1, read + count
          for i = 1, #found, width do ids[#ids + 1] = found[i] end
          records = #ids > 0 and redis.call('HMGET', jobs, unpack(ids)) or {}
          self.scores = found
          piece = count > 0 and #ids == count and piece * 4 or 0
        end
        if at > #ids then return end
        local record = records[at]
        if self.checked == ids[at] or startable(ids[at], record, in_list) then
          self.checked = ids[at]
          return record, self.scores[at * width]
        end
        at, self.taken = at + 1, self.taken + 1
      end
    end
    function self.take()
      at, self.taken = at + 1, self.taken + 1
    end
    return self
  end
  local plain = source(1, 'LRANGE', ready, {}, true)
  local scored = source(2, 'ZRANGE', ranked, { 'WITHSCORES' }, false)
  local more = limit > most
  while #taken < most do
    local record, from, by_rank, rank = plain.first(), plain, scored.first()
    if by_rank and not (record and due(record) <= tonumber(rank)) then
      record, from = by_rank, scored
    end
    if not record then
      more = false
      break
    end
    if not fits(record) then break end
    from.take()
  end
  if plain.taken > 0 then redis.call('LTRIM', ready, plain.taken, -1) end
  if scored.taken > 0 then redis.call('ZREMRANGEBYRANK', ranked, 0, scored.taken - 1) end
  full = full or more
end

local function take_plain(limit)
  if redis.call('ZCARD', ranked) == 0 then take_in_order(limit) else take_by_rank(limit) end
end

local limits = {}
for i = 22, #ARGV, 4 do
  limits['\1' .. ARGV[i]] = { tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]) }
end
local of_groups = { tonumber(ARGV[16]), tonumber(ARGV[17]), tonumber(ARGV[18]) }
if tonumber(ARGV[17]) > 0 or #ARGV >= 22 then
  forget_free_rates()
  -- Groups that rest longer than any limit asks for: the clock was put back.
  local longest = of_groups[2] * of_groups[3]
  for _, limit in pairs(limits) do longest = math.max(longest, limit[2] * limit[3]) end
  local after = '(' .. format('%.0f', now + longest)
  for _, group in ipairs(redis.call('ZRANGE', resting, after, '+inf', 'BYSCORE', 'LIMIT', 0, 50)) do
    redis.call('ZREM', resting, group)
    enter_round(group)
  end
end

-- How many jobs of a group or a kind have their places. While none runs at all, nobody has a place of a kind: one that is
-- counted was lost, by a failover or by a script of an older version, and is free again. A group's may be held by a job that
-- waits.
local none_runs, looked_at = redis.call('HEXISTS', meta, 'running') == 0, {}
local function places_taken(name)
  local busy = tonumber(redis.call('HGET', meta, 'n:' .. name) or 0)
  if busy > 0 and none_runs and byte(name, 1) == 1 and not looked_at[name] then
    redis.call('HDEL', meta, 'n:' .. name)
    busy = 0
  end
  -- What is counted from here on are jobs that this script takes.
  looked_at[name] = true
  return busy
end

-- Whether the limits let a job of this group start, which may have its place already. Then a function that counts it, and
-- returns whether another may start too; otherwise how long the rate limit wants it to wait, if it is that.
local function may_start(group, has_place)
  local limit = limits[group] or (byte(group, 1) == 1 and { 0, 0, 0 }) or of_groups
  local busy = places_taken(group)
  if not has_place and limit[1] > 0 and busy >= limit[1] then return false end
  local wait, spend = 0, nil
  if limit[2] > 0 then wait, spend = admit(group, limit[2], limit[3]) end
  if wait > 0 then return false, wait end
  return true, function()
    if spend then spend() end
    if not has_place then busy = redis.call('HINCRBY', meta, 'n:' .. group, 1) end
    return limit[1] == 0 or busy < limit[1]
  end
end

-- Takes parked jobs of a kind. They are in no line, so all limits are looked at here.
local function take_parked(waiting, skip)
  local at, before, steps = skip, #taken, 0
  while #taken < want do
    local id = redis.call('ZRANGE', waiting, at, at)[1]
    steps = steps + 1
    if not id or steps > want + 100 then break end
    local record = redis.call('HGET', jobs, id)
    if not record or not well_formed(record) or state(record) ~= 'p' then
      redis.call('ZREM', waiting, id)
    elseif has_expired(record) then
      expired[#expired + 1] = record
      redis.call('ZREM', waiting, id)
    else
      local group, line, starts, count_or_wait, count_kind = group_of(record), line_of(record), true, nil, nil
      if group then starts, count_or_wait = may_start(group, flag(record, 32)) end
      if starts and line then
        starts, count_kind = may_start(line, false)
        if not starts then count_or_wait = count_kind end
      end
      if starts then
        if not fits(without_flag(record, 32)) then break end
        if group then count_or_wait() end
        if line then count_kind() end
        redis.call('ZREM', waiting, id)
      else
        at = at + 1
        if count_or_wait then look_after(count_or_wait) else crowded = true end
      end
    end
  end
  local left = redis.call('ZCARD', waiting)
  if left == 0 then redis.call('ZREM', KEYS[22], ARGV[20]) end
  if left <= skip then return #taken > before and 3 or 0 end
  if at == skip and (full or #taken < want or want == tonumber(ARGV[8])) then return 1 end
  if crowded then
    redis.call('HSET', meta, 'hungry', 1)
    note_crowded(ARGV[20])
  end
  return 2
end
local of_parked = ARGV[20] ~= '' and take_parked(KEYS[21], tonumber(ARGV[21])) or 0

-- The group leaves the round for the line of a kind, at its end, unless it stands there already. It may stand in the lines of
-- several kinds: its first job is another one after a retry. Where it needs nothing any more, it has an empty turn. The line of a kind stands
-- in itself, so that its jobs without a group have their turn too.
local function stand_in_line(line, group)
  redis.call('ZREM', groups, group)
  if redis.call('ZADD', lines, 'NX', 0, '\0' .. line .. '\0' .. group) == 0 then return end
  redis.call('ZADD', lines, 0, line .. '\0' .. digits(next_turn()) .. group)
  redis.call('HINCRBY', meta, 'w:' .. line, 1)
end

-- Whether one more job of this kind may start. A kind without a limit may have had one.
local function has_place(line)
  local limit = limits[line]
  if not limit then return true end
  if limit[1] > 0 and places_taken(line) >= limit[1] then return false end
  local wait = limit[2] > 0 and admit(line, limit[2], limit[3]) or 0
  if wait > 0 then look_after(wait) end
  return wait == 0
end

-- The first in the line of a kind that has a place, of each such kind in turn. What is closed stays so: no place comes free
-- meanwhile. Returns the line, and the member of `lines`.
local open_lines, at_line = nil, 1
local function first_in_line()
  if not open_lines then
    open_lines = {}
    local from = '[\1'
    while true do
      local first = redis.call('ZRANGE', lines, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
      if not first then break end
      local line = sub(first, 1, string.find(first, '\0', 1, true) - 1)
      open_lines[#open_lines + 1] = line
      from = '(' .. line .. '\1'
    end
  end
  while #open_lines > 0 do
    if at_line > #open_lines then at_line = 1 end
    local line = open_lines[at_line]
    local member = has_place(line)
      and redis.call('ZRANGE', lines, '[' .. line .. '\0', '(' .. line .. '\1', 'BYLEX', 'LIMIT', 0, 1)[1]
    if member then return line, member end
    table.remove(open_lines, at_line)
  end
end

local function leave_line(line, member)
  local group = sub(member, #line + 18)
  redis.call('ZREM', lines, member, '\0' .. line .. '\0' .. group)
  if redis.call('HINCRBY', meta, 'w:' .. line, -1) <= 0 then redis.call('HDEL', meta, 'w:' .. line) end
  at_line = at_line + 1
  return group
end

-- Takes the first job of a group whose turn it is, or that was the first in the line `from`. Returns false if it does not fit.
local function take_from(group, from)
  -- Those who stand in line come first. The first job may be of another kind by now: then it is another line.
  local function must_wait(line)
    return line ~= from and redis.call('HEXISTS', meta, 'w:' .. line) == 1
  end
  local starts, count_or_wait = may_start(group, false)
  if byte(group, 1) == 1 and (not starts or must_wait(group)) then
    if not starts and count_or_wait then look_after(count_or_wait) end
    stand_in_line(group, group)
    return true
  elseif not starts then
    -- It comes back when one of its jobs has ended, or after its wait.
    redis.call('ZREM', groups, group)
    if count_or_wait then redis.call('ZADD', resting, format('%.0f', now + count_or_wait), group) end
    return true
  end
  local more = true
  local places = redis.call('ZRANGE', grouped, '[' .. group .. '\0', '(' .. group .. '\1', 'BYLEX', 'LIMIT', 0, 2)
  local id = places[1] and sub(places[1], -16)
  if id then
    local record = redis.call('HGET', jobs, id)
    if startable(id, record, false) then
      local line, count_kind = line_of(record), nil
      if line then
        starts, count_kind = may_start(line, false)
        if not starts or must_wait(line) then
          if not starts and count_kind then look_after(count_kind) end
          stand_in_line(line, group)
          return true
        end
      end
      if not fits(record) then
        enter_round(group)
        return false
      end
      more = count_or_wait()
      if line then count_kind() end
    end
    redis.call('ZREM', grouped, places[1])
  end
  if places[2] and more then
    redis.call('ZADD', groups, next_turn(), group)
  elseif places[2] and byte(group, 1) == 1 then
    stand_in_line(group, group)
  else
    redis.call('ZREM', groups, group)
  end
  return true
end

if redis.call('EXISTS', groups, lines) > 0 then
  -- Of an odd number the jobs without a group get one more every second time.
  local share = math.floor(want / 2)
  if want % 2 == 1 and redis.call('HDEL', meta, 'side') == 0 then
    redis.call('HSET', meta, 'side', 1)
    share = share + 1
  end
  if share > 0 then take_plain(share) end
  local rounds, line, waiting = 0, first_in_line()
  while #taken < want and not full do
    -- Whoever came first, to the round or to a line, has its turn.
    local first = redis.call('ZRANGE', groups, 0, 0, 'WITHSCORES')
    if waiting and not (first[2] and tonumber(first[2]) < tonumber(sub(waiting, #line + 2, #line + 17))) then
      local group = leave_line(line, waiting)
      if not take_from(group, line) then break end
      line, waiting = first_in_line()
    elseif not first[1] or not take_from(first[1]) then
      break
    end
    rounds = rounds + 1
    if rounds >= want + 20 then full = true end
  end
end
if #taken < want and not full then take_plain(want) end

local n, owned, written, ids = #taken, {}, {}, {}
local head, attempts_at_most = holder(worker, now), ARGV[19]
for i = 1, n do
  local record = taken[i]
  local id = id_of(record)
  owned[2 * i - 1], owned[2 * i] = delivery(record), attempts_at_most
  written[2 * i - 1], written[2 * i] = id, held(record, head)
  if keep_events > 0 then ids[i] = id end
  if uniqueness(record) == 2 then free_unique(record) end
end
if n > 0 then
  each_piece('HSET', running, owned)
  each_piece('HSET', jobs, written)
  redis.call('HINCRBY', meta, 'running', n)
  if queue_every > 0 then
    local free_at = free_again('', queue_every, queue_burst)
    redis.call('ZADD', rates, format('%.0f', free_at + queue_every * n), '')
  end
  if keep_events > 0 then event('started', table.concat(ids), worker) end
  -- One worker may have been woken for several places that came free; if there is none left, others wait for the next.
  if most > 0 and n == tonumber(ARGV[8])
    and redis.call('LLEN', ready) + redis.call('ZCARD', ranked) + redis.call('ZCARD', groups) + redis.call('ZCARD', lines) > 0 then
    if tonumber(redis.call('HGET', meta, 'running')) < most then wake(1) else redis.call('HSET', meta, 'hungry', 1) end
  end
end

for _, record in ipairs(expired) do
  event('expired', id_of(record))
  if flag(record, 32) then free_group(record) end
  conclude(record, 'e', '', now)
  -- Its parent may be ready, in a container that was read before.
  full = full or extra(record, 'p')
end
if #expired > 0 then trim_done(#expired) end

if full or n == tonumber(ARGV[8]) then
  redis.call('ZREM', idle, ARGV[6])
  return { 1, 0, taken, until_now, of_parked }
end
redis.call('ZADD', idle, until_now, ARGV[6])
for _, key in ipairs({ delayed, resting }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first then look_after(math.max(1, tonumber(first) - now)) end
end
return { 1, later, taken, until_now, of_parked }
