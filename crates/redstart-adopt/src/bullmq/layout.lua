-- What the scripts on BullMQ's layout share. The layout is the contract; BullMQ's own scripts are not called, because
-- their arguments change between releases.
--
-- KEYS of every script: wait active paused meta id delayed prioritized pc completed failed events marker stalled
--   stalled-check limiter waiting-children repeat
-- ARGV[1] of every script: the prefix of the queue's keys, `bull:<queue>:`
-- ARGV[2] of every script: the major version that is assumed while the queue declares none
local call = redis.call
local prefix = ARGV[1]

-- The keys of a queue: this one's, or a parent's.
local function queue(base)
  return {
    base = base, wait = base .. 'wait', active = base .. 'active', paused = base .. 'paused', meta = base .. 'meta',
    delayed = base .. 'delayed', prioritized = base .. 'prioritized', pc = base .. 'pc', events = base .. 'events',
    marker = base .. 'marker', failed = base .. 'failed', children = base .. 'waiting-children',
  }
end
local here = queue(prefix)

local function whole(number) return string.format('%.0f', number) end

local function now()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function event(q, ...)
  local most = tonumber(call('HGET', q.meta, 'opts.maxLenEvents') or '')
  if not most or most < 0 then
    most = 10000
    call('HSET', q.meta, 'opts.maxLenEvents', most)
  end
  call('XADD', q.events, 'MAXLEN', '~', whole(most), '*', 'event', ...)
end

-- The major version that the queue declares. Only `bullmq:<version>` counts: other families have numbers of their own, and
-- pause as version 5 does.
local function major(q)
  local version = call('HGET', q.meta, 'version')
  if not version then return tonumber(ARGV[2]) end
  return tonumber(string.match(version, '^bullmq:(%d+)')) or 5
end

-- A value out of JSON, where null is not nil.
local function given(value)
  if value == cjson.null then return nil end
  return value
end

-- A whole number in a field of a job; 0 if there is anything else. Whoever wrote it, a script must not fail half-way.
local function number_in(key, field)
  local number = tonumber(call('HGET', key, field) or '') or 0
  if number >= 0 and number <= 9007199254740991 then return math.floor(number) end
  return 0
end

-- Adds 1 to such a number.
local function count_up(key, field)
  local number = number_in(key, field) + 1
  call('HSET', key, field, whole(number))
  return number
end

-- An object out of JSON that others wrote; nil if it is anything else.
local function object_in(json)
  local readable, value = pcall(cjson.decode, json or '')
  if readable and type(value) == 'table' then return value end
end

-- A part of options that has parts itself; empty if it is anything else.
local function rules_of(value)
  return type(value) == 'table' and value or {}
end

local function is_paused(q) return call('HEXISTS', q.meta, 'paused') == 1 end

-- As many jobs run as the queue allows altogether.
local function is_maxed(q)
  local most = tonumber(call('HGET', q.meta, 'concurrency') or '')
  return most ~= nil and call('LLEN', q.active) >= most
end

-- Wakes a worker: the marker is what all of them wait for.
local function wake(q)
  if not is_paused(q) and not is_maxed(q) then call('ZADD', q.marker, 0, '0') end
end

-- Workers that wait learn when the next delayed job is due.
local function wake_later(q)
  local first = call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')
  if first[2] then call('ZADD', q.marker, whole(math.floor(tonumber(first[2]) / 4096)), '1') end
end

-- 1 once this run of the script has seen that versions 5 and 6 share a queue.
local mixed = 0

-- Keeps jobs that the next pause or resume by version 5 would lose: it renames one of the two lists over the other. Only a mix of
-- versions fills both of them while the queue is paused, or leaves ids in `paused` while it is not. At most 1,000 ids are moved, in
-- the order in which workers take them, to the list that survives: version 5 renames it only over an absent one, and version 6 merges.
-- Returns whether there were any.
local function settle(q)
  local from, to = q.wait, q.paused
  if not is_paused(q) then from, to = to, from end
  if call('EXISTS', q.paused) == 0 or call('EXISTS', from) == 0 then return false end
  mixed = 1
  for _ = 1, 1000 do
    if not call('LMOVE', from, to, 'RIGHT', 'LEFT') then break end
  end
  return true
end

-- The list of the jobs of a paused queue. Up to version 5 it is one of their own. Where one of the two lists has jobs, that is the
-- one: both filled is what makes jobs get lost.
local function paused_list(q)
  if call('EXISTS', q.paused) == 1 then return q.paused end
  if major(q) < 6 and call('EXISTS', q.wait) == 0 then return q.paused end
  return q.wait
end

-- Puts a job where workers look.
local function enqueue(q, id, push)
  settle(q)
  call(push, is_paused(q) and paused_list(q) or q.wait, id)
  wake(q)
end

local function prioritise(q, id, priority)
  local turn = call('INCR', q.pc)
  call('ZADD', q.prioritized, whole(priority * 4294967296 + turn % 4294967296), id)
  wake(q)
end

-- Twelve bits below the time keep the order of jobs that are due in the same millisecond.
local function delay_until(q, id, at)
  local low, high = at * 4096, at * 4096 + 4095
  local last = call('ZREVRANGEBYSCORE', q.delayed, whole(high), whole(low), 'WITHSCORES', 'LIMIT', 0, 1)
  local score = low
  if last[2] then score = math.min(tonumber(last[2]) + 1, high) end
  call('ZADD', q.delayed, whole(score), id)
  event(q, 'delayed', 'jobId', id, 'delay', whole(at))
  wake_later(q)
end

-- Writes a new job and puts it where workers, its children or the clock find it.
-- job: id, name, data, opts as JSON, delay, priority, push, waits (for children), fields: more of its hash
local function insert(q, job, at)
  call('HSET', q.base .. job.id, 'name', job.name, 'data', job.data, 'opts', job.opts, 'timestamp', whole(at),
    'delay', whole(job.delay), 'priority', whole(job.priority), unpack(job.fields))
  event(q, 'added', 'jobId', job.id, 'name', job.name)
  if job.waits then
    call('ZADD', q.children, whole(at), job.id)
    event(q, 'waiting-children', 'jobId', job.id)
  elseif job.delay > 0 then
    delay_until(q, job.id, at + job.delay)
  else
    if job.priority > 0 then prioritise(q, job.id, job.priority) else enqueue(q, job.id, job.push) end
    event(q, 'waiting', 'jobId', job.id)
  end
end

-- The same for a job whose options are what another job or a scheduler left.
local function insert_as(q, id, name, data, options, at, fields)
  local guard = given(rules_of(options.de).id)
  if guard then
    fields[#fields + 1] = 'deid'
    fields[#fields + 1] = guard
  end
  insert(q, {
    id = id, name = name, data = data, opts = cjson.encode(options), fields = fields,
    delay = tonumber(given(options.delay)) or 0, priority = tonumber(given(options.priority)) or 0,
    push = given(options.lifo) and 'RPUSH' or 'LPUSH',
  }, at)
end

-- Delayed jobs that are due.
local function promote(q, at)
  local due = call('ZRANGEBYSCORE', q.delayed, 0, whole(at * 4096 + 4095), 'LIMIT', 0, 500)
  for _, id in ipairs(due) do
    call('ZREM', q.delayed, id)
    local priority = number_in(q.base .. id, 'priority')
    if priority == 0 then enqueue(q, id, 'LPUSH') else prioritise(q, id, priority) end
    call('HSET', q.base .. id, 'delay', 0)
    event(q, 'waiting', 'jobId', id, 'prev', 'delayed')
  end
end

-- A parent whose last child is done becomes a job like any other.
local function release_parent(parent_queue, parent_id, at)
  local q = queue(parent_queue .. ':')
  local key = q.base .. parent_id
  if call('EXISTS', key) == 0 or call('ZREM', q.children, parent_id) == 0 then return end
  local priority, delay = number_in(key, 'priority'), number_in(key, 'delay')
  if delay > 0 then
    delay_until(q, parent_id, at + delay)
    return
  end
  if priority == 0 then enqueue(q, parent_id, 'RPUSH') else prioritise(q, parent_id, priority) end
  event(q, 'waiting', 'jobId', parent_id, 'prev', 'waiting-children')
end

-- Ends a worker's hold on a job: 0, -2 if it has no lock, -6 if somebody else has it.
local function unlock(id, token)
  local lock = prefix .. id .. ':lock'
  local holder = call('GET', lock)
  if holder ~= token then return holder and -6 or -2 end
  call('DEL', lock)
  call('SREM', KEYS[13], id)
  return 0
end

-- The queue and the id of a parent: as the child notes them, or out of its key; nil if neither tells. Then the rest of what the child notes.
local function parent_of(key, json)
  local noted = object_in(json)
  if noted and type(noted.queueKey) == 'string' and type(noted.id) == 'string' then return noted.queueKey, noted.id, noted end
  local base, id = string.match(key, '^(.*):([^:]*)$')
  return base, id, noted or {}
end

-- Removes a job. A parent that waited for it does not wait any more.
local function remove_job(id, at)
  local key = prefix .. id
  local known = call('HMGET', key, 'parentKey', 'parent')
  call('DEL', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':unsuccessful')
  if not known[1] or known[1] == '' then return end
  local children = known[1] .. ':dependencies'
  if call('SREM', children, key) == 1 and call('SCARD', children) == 0 then
    local base, parent_id = parent_of(known[1], known[2])
    if base then release_parent(base, parent_id, at) end
  end
end
