-- Takes the next job that this worker can end correctly.
-- ARGV[3] token  [4] lease in ms  [5] name of the worker or ''  [6] jobs per window, 0 = unlimited  [7] the window in ms
--   [8] 1 = the worker knows how long to wait after types of backoff that are not BullMQ's own
-- Returns {id, field, value, ...}, or {'', ms, left, mixed} with the time after which asking again may help, 0 = unknown;
--   left is 1 if jobs wait that only Node can run, mixed is 1 if versions 5 and 6 share the queue.
local at = now()
settle(here)
promote(here, at)
if is_paused(here) then return {'', 0, 0, mixed} end
local most = tonumber(call('HGET', KEYS[4], 'max') or '') or tonumber(ARGV[6])
local window = tonumber(call('HGET', KEYS[4], 'duration') or '') or tonumber(ARGV[7])
if most > 0 and (tonumber(call('GET', KEYS[15]) or '') or 0) >= most then
  local left = call('PTTL', KEYS[15])
  if left > 0 then return {'', left, 0, mixed} end
  call('DEL', KEYS[15])
end
if is_maxed(here) then return {'', 0, 0, mixed} end

-- The worker that takes a job of a scheduler adds the next one; without it the scheduler would never run again.
-- Returns the next one, nil if none follows, or false if only Node can tell when: a pattern of cron, or a repeatable job from
-- before there were schedulers.
local function successor(id, scheduler, options)
  local rules = given(options['repeat'])
  if not scheduler then
    if rules then return false end
    return nil
  end
  local before = tonumber(call('ZSCORE', KEYS[17], scheduler) or '')
  if not before then return nil end
  local base = KEYS[17] .. ':' .. scheduler
  local known = call('HMGET', base, 'name', 'data', 'every', 'offset', 'endDate', 'ic', 'pattern')
  if not known[6] then return false end
  -- A job that is tried again has its successor already.
  if id ~= 'repeat:' .. scheduler .. ':' .. whole(before) then return nil end
  rules = rules_of(rules)
  local count = (tonumber(given(rules.count)) or 0) + 1
  local limit = tonumber(given(rules.limit))
  if limit and count > limit then return nil end
  local last = tonumber(known[5]) or tonumber(given(rules.endDate))
  if last and at > last then return nil end
  local every = tonumber(known[3]) or tonumber(given(rules.every))
  if not every or every <= 0 or known[7] or given(rules.pattern) then return false end

  local offset = tonumber(known[4]) or tonumber(given(rules.offset)) or 0
  local turn = before + every
  if turn < at then
    -- Turns that were missed are not made up for.
    turn = math.floor(at / every) * every + offset
    if turn <= at then turn = turn + every end
  end
  turn = math.floor(turn)
  local next_id = 'repeat:' .. scheduler .. ':' .. whole(turn)
  rules.count, rules.immediately = count, nil
  if not given(rules.offset) or rules.offset == 0 then rules.offset = nil end
  options['repeat'], options.jobId, options.repeatJobKey = rules, next_id, scheduler
  options.prevMillis, options.timestamp, options.delay = nil, at, math.max(0, turn - at)
  return {id = next_id, turn = turn, base = base, scheduler = scheduler, name = known[1], data = known[2], options = options}
end

-- Whether this worker can end a job, and what follows it.
local function judge(id, scheduler, opts)
  local special = scheduler or string.find(opts, '"repeat"', 1, true) or string.find(opts, '"backoff"', 1, true)
  if not special then return true end
  local options = object_in(opts) or {}
  local backoff = given(options.backoff)
  if ARGV[8] ~= '1' and type(backoff) == 'table' and (tonumber(given(options.attempts)) or 0) > 1 then
    local kind = given(backoff.type)
    if kind ~= 'fixed' and kind ~= 'exponential' then return false end
  end
  local following = successor(id, scheduler, options)
  return following ~= false, following
end

-- The first of those that wait, then of those with priorities. Ids without a job are dropped: markers stood among them before
-- version 5, and a job may have been removed.
local id, following
local left = 0
local places = {
  {at = function(n) return call('LINDEX', KEYS[1], -1 - n) end, drop = function(gone) call('LREM', KEYS[1], -1, gone) end},
  {at = function(n) return call('ZRANGE', KEYS[7], n, n)[1] end, drop = function(gone) call('ZREM', KEYS[7], gone) end},
}
for _, place in ipairs(places) do
  local skipped = 0
  for _ = 1, 100 do
    local candidate = place.at(skipped)
    if not candidate then break end
    local known = call('HMGET', prefix .. candidate, 'rjk', 'opts')
    if not known[2] and call('EXISTS', prefix .. candidate) == 0 then
      place.drop(candidate)
    else
      local able, what = judge(candidate, known[1], known[2] or '{}')
      if able then
        place.drop(candidate)
        call('LPUSH', KEYS[2], candidate)
        id, following = candidate, what
        break
      end
      skipped, left = skipped + 1, 1
    end
  end
  if id then break end
end
if not id then
  if call('ZCARD', KEYS[7]) == 0 then call('DEL', KEYS[8]) end
  -- This worker may have consumed the hint that was meant for Node's.
  if left == 1 then wake(here) end
  local first = call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
  if first[2] then return {'', math.max(1, math.floor(tonumber(first[2]) / 4096) - at), left, mixed} end
  return {'', 0, left, mixed}
end

local key = prefix .. id
if following then
  if call('EXISTS', prefix .. following.id) == 1 then
    event(here, 'duplicated', 'jobId', following.id)
  else
    local data = following.data or call('HGET', key, 'data') or '{}'
    call('ZADD', KEYS[17], whole(following.turn), following.scheduler)
    call('HINCRBY', following.base, 'ic', 1)
    call('INCR', KEYS[5])
    insert_as(here, following.id, following.name or call('HGET', key, 'name'), data, following.options, at,
      {'rjk', following.scheduler})
    if major(here) < 6 then call('HSET', key, 'nrjid', following.id) end
  end
end
if most > 0 and call('HEXISTS', key, 'defa') == 0 and call('INCR', KEYS[15]) == 1 then
  call('PEXPIRE', KEYS[15], whole(window))
end
call('SET', key .. ':lock', ARGV[3], 'PX', ARGV[4])
call('HSET', key, 'processedOn', whole(at))
if ARGV[5] ~= '' then call('HSET', key, 'pb', ARGV[5]) end
count_up(key, 'ats')
event(here, 'active', 'jobId', id, 'prev', 'waiting')
-- Another worker may find more.
wake(here)
local job = call('HGETALL', key)
table.insert(job, 1, id)
return job
