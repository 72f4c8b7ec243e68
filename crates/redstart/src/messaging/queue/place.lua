-- Fragment: the places of a queue, and the moves between them. After now.lua, record.lua and wake.lua.
--
-- KEYS  1 jobs  2 ready  3 ranked  4 delayed  5 idle  6 meta  7 unique  8 dead  9 done  10 ended  11 details  12 groups
--       13 grouped  14 resting  15 parents  16 events
-- ARGV  1 wake channel  2 boost in microseconds  3 how many events to keep (0 = none)  4 how long to keep done jobs in
--       milliseconds if the job does not say (-1 = not at all, 0 = for ever)  5 how many done jobs to keep (0 = all)
--
-- `details` has, for a job: id .. 'a' .. number: an attempt (since when, until when, worker, error); 'p' progress; 'l' ..
-- number: a line of its log, 'n' how many there were; 'x' why it is dead; 'y' why it was parked; and for a parent 'w' how
-- many children are left, 'c' .. number: what became of a child, 'f' how many failed, 'm' .. number: that a child in another
-- queue was heard of; for such a child 'q': what its parent is to be told. `ended` has 'r', the result, too.
--
-- `parents` has '>' .. id for a child whose parent in another queue is to be told, by AWAY + the time to tell it: behind
-- everything that is due, so that a scheduler that knows no such messages leaves them alone. Behind those it has '-' .. id for
-- a job that is over and had many children, by SWEEP: a scheduler removes what became of them some at a time. 's' of that job
-- is how many are left.
--
-- `grouped` has group .. '\0' .. time of enqueueing .. id, in lexical order: a group's jobs lie together, oldest first.
-- `groups` has the groups that may have a job to run, first in, first out: a group that had its turn, or was away because
-- of a limit, goes to the end. `resting` has those that wait for their rate limit. Groups whose first job waits for a place of
-- its kind stand in the line of that kind: see reserve.lua.
--
-- `meta` has 'n:' .. group: how many of its jobs run, or wait for their next attempt in their place; the same of the line of a
-- kind, which is char(1) .. kind; and 'w:' .. line: how many groups stand in it.
local jobs, ready, ranked, delayed, idle, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local unique, dead, done, ended, details = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local groups, grouped, resting, parents, events = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local channel, boost, keep_events = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local KEPT_ATTEMPTS, KEPT_LINES, AWAY, SWEEP = 20, 100, 4000000000000000, 8900000000000000
local INCOMPLETE = 'its flow was not added completely'

-- How much this script has done so far, in commands and elements. A script that goes over many jobs stops when that is enough,
-- and says how far it came: one job may have more than a hundred fields.
local spent = 0
local function is_enough()
  return spent >= 1000
end

-- One entry for many jobs: their ids in a row. The text is cut, so that the stream is bounded in bytes too.
local function event(name, ids, text)
  if keep_events == 0 or #ids == 0 then return end
  text = sub(text or '', 1, 1000)
  redis.call('XADD', events, 'MAXLEN', '~', keep_events, '*', 'event', name, 'jobs', ids, 'text', text)
end

local function wake(jobs)
  wake_idle(idle, channel, jobs)
end

-- Tells idle workers that a job is due after this time, so that they look then.
local function announce(micros)
  if redis.call('EXISTS', idle) == 1 then
    redis.call('SPUBLISH', channel, 'due ' .. format('%.0f', micros))
  end
end

-- Frees the unique key of a record if this job holds it. A key that is held for a time is held whatever becomes of the
-- job.
local function free_unique(record)
  if uniqueness(record) == 0 or uniqueness(record) == 3 then return end
  local key = extra(record, 'u')
  if key and sub(redis.call('HGET', unique, key) or '', 1, 16) == id_of(record) then
    redis.call('HDEL', unique, key)
  end
end

-- A job that comes back holds the key again that it held until its start, unless another job has that by now.
local function hold_again(record)
  if uniqueness(record) == 2 then redis.call('HSETNX', unique, extra(record, 'u'), id_of(record)) end
end

-- A job that was taken and is not charged an attempt. Whether it ran is not known: its worker was shut down.
local function unstarted(record)
  hold_again(record)
  return handed_back(record)
end

local function group_of(record)
  if flag(record, 64) then return extra(record, 'g') end
end

-- The job counts as enqueued now: its time to expire begins again. The jobs of a group are told apart by that time, and
-- lie in its order.
local function as_enqueued_now(record, now)
  local stamp = now
  if group_of(record) then
    stamp = math.max(now, tonumber(redis.call('HGET', meta, 'stamp') or 0) + 1)
    redis.call('HSET', meta, 'stamp', format('%.0f', stamp))
  end
  return sub(record, 1, 18) .. digits(stamp) .. sub(record, 35)
end

local function place_in_group(group, record)
  return group .. '\0' .. sub(record, 19, 34) .. id_of(record)
end

-- The end of the line of groups.
local function next_turn()
  return redis.call('HINCRBY', meta, 'turn', 1)
end

-- The group may have a job to run: it goes to the end of the line, unless it is in it.
local function enter_round(group)
  redis.call('ZADD', groups, 'NX', next_turn(), group)
end

-- Makes records available to workers: those of a group in its order, those of priority 0 in the list at `side`, the
-- others by rank.
local function make_ready(side, records)
  local plain, scored, written = {}, {}, {}
  for _, record in ipairs(records) do
    local id, group, level = id_of(record), group_of(record), priority(record)
    written[#written + 1] = id
    written[#written + 1] = record
    if group then
      redis.call('ZADD', grouped, 0, place_in_group(group, record))
      enter_round(group)
    elseif level == 0 then
      plain[#plain + 1] = id
    else
      scored[#scored + 1] = format('%.0f', due(record) - level * boost)
      scored[#scored + 1] = id
    end
  end
  each_piece('HSET', jobs, written)
  each_piece(side, ready, plain)
  each_piece('ZADD', ranked, scored)
end

-- The line of the job's kind, if it has a group and needs a place of its kind too. A job without a group stands in that line
-- itself: it is its group.
local function line_of(record)
  if flag(record, 64) and extra(record, 'l') then return '\1' .. kind_of(record) end
end

-- A place in a group, or of a kind, is free again.
local function give_back(name)
  if redis.call('HINCRBY', meta, 'n:' .. name, -1) <= 0 then redis.call('HDEL', meta, 'n:' .. name) end
  if byte(name, 1) == 1 and redis.call('HEXISTS', meta, 'w:' .. name) == 1 then
    -- `reserve` lets those in who wait for it.
    wake(1)
  elseif redis.call('ZLEXCOUNT', grouped, '[' .. name .. '\0', '(' .. name .. '\1') > 0 then
    enter_round(name)
    wake(1)
  end
end

-- A job that does not run keeps its place in its group, and none of its kind.
local function free_line(record)
  local line = line_of(record)
  if line then give_back(line) end
end

local function free_group(record)
  local group = group_of(record)
  if group then give_back(group) end
end

-- A running job gives its places back: in its group, and of its kind.
local function free_place(record)
  free_group(record)
  free_line(record)
end

-- Limits keep parked jobs of this kind from running: workers that know it look again when a job has ended.
local function note_crowded(kind)
  local noted = redis.call('HGET', meta, 'crowded') or ''
  local entry = char(#kind) .. kind
  local at = 1
  while at <= #noted do
    local length = byte(noted, at)
    if sub(noted, at, at + length) == entry then return end
    at = at + 1 + length
  end
  redis.call('HSET', meta, 'crowded', noted .. entry)
end

-- So many jobs run no longer. Workers that were refused because of a limit look again.
local function count_ended(count)
  if count == 0 then return end
  if redis.call('HINCRBY', meta, 'running', -count) <= 0 then redis.call('HDEL', meta, 'running') end
  if redis.call('HDEL', meta, 'hungry') == 0 then return end
  wake(count)
  local noted = redis.call('HGET', meta, 'crowded')
  if not noted then return end
  redis.call('HDEL', meta, 'crowded')
  local at = 1
  while at <= #noted do
    local length = byte(noted, at)
    redis.call('SPUBLISH', channel, 'parked ' .. sub(noted, at + 1, at + length))
    at = at + 1 + length
  end
end

-- The fields of a job's details.
local function detail_fields(record)
  local id, fields = id_of(record), {}
  for i = 0, math.min(attempts(record), KEPT_ATTEMPTS) do
    fields[#fields + 1] = id .. 'a' .. (i % KEPT_ATTEMPTS)
  end
  fields[#fields + 1] = id .. 'p'
  fields[#fields + 1] = id .. 'x'
  fields[#fields + 1] = id .. 'y'
  local lines = tonumber(redis.call('HGET', details, id .. 'n') or 0)
  if lines > 0 then
    fields[#fields + 1] = id .. 'n'
    for i = 0, math.min(lines, KEPT_LINES) - 1 do fields[#fields + 1] = id .. 'l' .. i end
  end
  -- They are read, written or removed.
  spent = spent + 2 * #fields
  return fields
end

-- Removes what became of a job's children from number `first` on.
local function forget_children(id, first, count)
  local fields = {}
  for i = first, first + count - 1 do
    fields[#fields + 1] = id .. 'c' .. i
    fields[#fields + 1] = id .. 'm' .. i
  end
  each_piece('HDEL', details, fields)
end

-- Forgets the details of a job, and what became of its children: of so many in one script, and of the others later.
local children_at_once = 150
local function forget(record)
  if flag(record, 8) then each_piece('HDEL', details, detail_fields(record)) end
  local children = flag(record, 64) and extra(record, 'n')
  if children then
    local id, left = id_of(record), tonumber(children)
    redis.call('HDEL', details, id .. 'w', id .. 'f')
    local now = math.min(left, children_at_once)
    children_at_once, spent = children_at_once - now, spent + 2 * now + 10
    forget_children(id, left - now, now)
    if left > now then
      redis.call('HSET', details, id .. 's', left - now)
      redis.call('ZADD', parents, format('%.0f', SWEEP), '-' .. id)
      redis.call('SPUBLISH', channel, 'schedule')
    end
  end
end

-- Writes down an attempt that has ended; returns the record, which has details from now on.
local function note_attempt(record, worker, since, now, error)
  redis.call('HSET', details, id_of(record) .. 'a' .. (attempts(record) % KEPT_ATTEMPTS),
    digits(since) .. digits(now) .. worker .. sub(error, 1, 1000))
  return with_flag(record, 8)
end

local function tell(record, letter)
  redis.call('SPUBLISH', channel .. ':ended', letter .. id_of(record))
end

local function forget_cancel(id)
  if redis.call('HDEL', meta, 'c:' .. id) == 1 and redis.call('HINCRBY', meta, 'cancels', -1) <= 0 then
    redis.call('HDEL', meta, 'cancels')
  end
end

-- The job is no longer to be cancelled: it is over.
local function settle_cancel(record)
  if not flag(record, 16) then return record end
  forget_cancel(id_of(record))
  return without_flag(record, 16)
end

local child_ended

-- The job becomes a dead letter. The record is as it was before it was taken.
local function bury(record, reason, now)
  local id = id_of(record)
  spent = spent + 40
  free_unique(record)
  record = as(with_flag(settle_cancel(record), 8), 'z', now)
  redis.call('HSET', jobs, id, record)
  redis.call('HSET', details, id .. 'x', sub(reason, 1, 4000))
  redis.call('ZADD', dead, format('%.0f', now), id)
  tell(record, 'z')
  event('dead', id, reason)
  if child_ended(record, 'z', reason, now) then
    -- If it is replayed, its parent does not hear of it a second time.
    redis.call('HSET', jobs, id, with_flag(record, 128))
  end
end

-- The job is over: d done, c cancelled, e expired. It is kept for a time, or leaves nothing.
local function conclude(record, letter, result, now)
  local id = id_of(record)
  local keep = tonumber(flag(record, 64) and extra(record, 'k') or ARGV[4])
  local is_told = flag(record, 64) and (extra(record, 'p') or extra(record, 'q'))
  -- Where it is neither kept nor a parent is told, it is removed, and its places go to others.
  spent = spent + ((keep >= 0 or is_told) and 40 or 25)
  free_unique(record)
  record = settle_cancel(record)
  if keep >= 0 then
    local kept = { id, as(record, letter, now), id .. 'r', result }
    if flag(record, 8) then
      local fields = detail_fields(record)
      local values = redis.call('HMGET', details, unpack(fields))
      for i, field in ipairs(fields) do
        if values[i] then
          kept[#kept + 1] = field
          kept[#kept + 1] = values[i]
        end
      end
    end
    redis.call('HSET', ended, unpack(kept))
    redis.call('ZADD', done, keep > 0 and format('%.0f', now + keep * 1000) or '+inf', id)
    for _, key in ipairs({ ended, done }) do
      -- Workers remove what was kept long enough; if there are none, all of it expires with the last.
      local ttl = redis.call('PTTL', key)
      if keep == 0 then
        redis.call('PERSIST', key)
      elseif ttl < keep and (ttl >= 0 or redis.call('HLEN', ended) == #kept / 2) then
        redis.call('PEXPIRE', key, keep)
      end
    end
  end
  forget(record)
  redis.call('HDEL', jobs, id)
  tell(record, letter)
  child_ended(record, letter, letter == 'd' and result or (letter == 'c' and 'cancelled' or 'expired'), now)
end

-- Removes a kept job.
local function discard(id)
  local record = redis.call('HGET', ended, id)
  if record and well_formed(record) then
    local fields = { id, id .. 'r', id .. 'p', id .. 'x', id .. 'n' }
    for i = 0, math.min(attempts(record), KEPT_ATTEMPTS) do
      fields[#fields + 1] = id .. 'a' .. (i % KEPT_ATTEMPTS)
    end
    local lines = math.min(tonumber(redis.call('HGET', ended, id .. 'n') or 0), KEPT_LINES)
    for i = 0, lines - 1 do fields[#fields + 1] = id .. 'l' .. i end
    redis.call('HDEL', ended, unpack(fields))
    spent = spent + #fields
  else
    redis.call('HDEL', ended, id)
  end
  redis.call('ZREM', done, id)
end

-- Keeps as many done jobs as are wanted, after so many have ended. Twice as many and a few more go each time, so that a
-- smaller limit is reached soon, but no more than may be done at once.
local function trim_done(ended_now)
  local most = tonumber(ARGV[5])
  if most == 0 then return end
  local over = redis.call('ZCARD', done) - most
  if over <= 0 then return end
  local until_now = spent
  for _, id in ipairs(redis.call('ZRANGE', done, 0, math.min(over, 2 * ended_now + 20) - 1)) do
    if spent >= until_now + 500 then return end
    discard(id)
  end
end

-- How many of `parents` are messages and what is left of jobs, not jobs.
local function count_messages()
  return redis.call('ZCOUNT', parents, format('%.0f', AWAY), '(9e15')
end

-- Notes what became of a job whose parent is in another queue: a worker tells that queue, and then forgets it. What was not
-- told yet is replaced.
local function tell_away(record, link, letter, text, now)
  local id = id_of(record)
  if letter ~= 'd' then text = sub(text, 1, 4000) end
  redis.call('HSET', details, id .. 'q', digits(now) .. letter .. pair(#link) .. link .. text)
  redis.call('ZADD', parents, format('%.0f', AWAY + now), '>' .. id)
  redis.call('SPUBLISH', channel, 'schedule')
end

-- A child is over: d done, z a dead letter, otherwise gone. Its parent hears of it, and runs after the last one. A parent
-- that is a dead letter is told too, so that it is known whom it has to wait for if it is replayed. Returns whether the
-- child was counted. A dead letter that fails its parent is not: it may be replayed.
local function tell_parent(id, policy, number, letter, text, now)
  local parent = redis.call('HGET', jobs, id)
  local waits = parent and state(parent) == 'w'
  if not waits then
    if not parent or state(parent) ~= 'z' or redis.call('HEXISTS', details, id .. 'w') == 0 then return false end
  end
  if letter ~= 'd' then text = sub(text, 1, 4000) end
  local fails = letter ~= 'd' and policy == 'f'
  local counted = not (fails and letter == 'z')
  local left
  if counted then
    if letter ~= 'd' then redis.call('HINCRBY', details, id .. 'f', 1) end
    if policy ~= 'b' and (letter == 'd' or policy ~= 'i') then
      redis.call('HSET', details, id .. 'c' .. number, (letter == 'd' and 'd' or 'z') .. text)
    end
    left = redis.call('HINCRBY', details, id .. 'w', -1)
    if left <= 0 then redis.call('HDEL', details, id .. 'w') end
  end
  if waits and fails then
    redis.call('ZREM', parents, id)
    bury(as(parent, 'r', due(parent)), 'a child failed: ' .. text, now)
  elseif waits and left <= 0 then
    redis.call('ZREM', parents, id)
    make_ready('RPUSH', { as(parent, 'r', now) })
    wake(1)
  end
  return counted
end

child_ended = function(record, letter, text, now)
  if not flag(record, 64) or flag(record, 128) then return false end
  local link = extra(record, 'p')
  if link then return tell_parent(sub(link, 1, 16), sub(link, 17, 17), sub(link, 18), letter, text, now) end
  link = extra(record, 'q')
  if link then tell_away(record, link, letter, text, now) end
  return false
end

-- Removes a dead letter for good. A parent that would wait for it, were it replayed, waits no longer.
local function drop_letter(id, now)
  spent = spent + 10
  redis.call('ZREM', dead, id)
  local record = redis.call('HGET', jobs, id)
  if record and well_formed(record) then
    redis.call('HDEL', jobs, id)
    forget(record)
    child_ended(record, 'c', 'its dead letter was deleted', now)
  else
    redis.call('HDEL', details, id .. 'x')
    redis.call('HDEL', jobs, id)
  end
end
