-- Ends a job for good.
-- ARGV[3] id  [4] token  [5] completed or failed  [6] the value as JSON, or the reason  [7] stack as JSON or ''
--   [8] jobs to keep, -1 = all, 0 = none  [9] seconds to keep, 0 = for ever  [10] attempts that the job had
-- Returns 0, -1 no such job, -2 not locked, -3 not active, -4 has unfinished children, -6 locked by another, -9 has
--   failed children.
local id, key = ARGV[3], prefix .. ARGV[3]
local failed = ARGV[5] == 'failed'
if call('EXISTS', key) == 0 then return -1 end
if not failed then
  if call('SCARD', key .. ':dependencies') ~= 0 then return -4 end
  if call('ZCARD', key .. ':unsuccessful') ~= 0 then return -9 end
end
local held = unlock(id, ARGV[4])
if held < 0 then return held end
if call('LREM', KEYS[2], -1, id) < 1 then return -3 end
local at = now()
local known = call('HMGET', key, 'parentKey', 'parent', 'deid')

if known[3] then
  -- A guard with a ttl ends by itself.
  local guard = prefix .. 'de:' .. known[3]
  if call('PTTL', guard) == -1 and call('GET', guard) == id then call('DEL', guard) end
  -- With `keepLastIfActive` BullMQ keeps the last job that was refused while this one ran. Its turn is now.
  local kept = prefix .. 'dn:' .. known[3]
  local last = call('HMGET', kept, 'name', 'data', 'opts', 'pk', 'pd', 'pdk', 'rjk', 'jid')
  if last[3] then
    local number = whole(call('INCR', KEYS[5]))
    local next_id = last[8] or number
    if call('EXISTS', prefix .. next_id) == 1 then next_id = number end
    local options, fields = object_in(last[3]) or {}, {}
    local rules = rules_of(options.de)
    local ttl = tonumber(given(rules.ttl)) or 0
    if not given(rules.keepLastIfActive) and ttl >= 1 then
      call('SET', guard, next_id, 'PX', whole(ttl))
    else
      call('SET', guard, next_id)
    end
    if last[4] then fields = {'parentKey', last[4], 'parent', last[5] or ''} end
    if last[7] then
      fields[#fields + 1] = 'rjk'
      fields[#fields + 1] = last[7]
    end
    insert_as(here, next_id, last[1], last[2], options, at, fields)
    if last[6] then call('SADD', last[6], prefix .. next_id) end
    call('DEL', kept)
  end
end

local base, parent_id, parent
if known[1] and known[1] ~= '' then base, parent_id, parent = parent_of(known[1], known[2]) end
if base then
  local parent_key, children = known[1], known[1] .. ':dependencies'
  if not failed then
    if call('SREM', children, key) == 1 then
      call('HSET', parent_key .. ':processed', key, ARGV[6])
      if call('SCARD', children) == 0 then release_parent(base, parent_id, at) end
    end
  elseif given(parent.fpof) then
    if call('SREM', children, key) == 1 then
      call('ZADD', parent_key .. ':unsuccessful', whole(at), key)
      if call('EXISTS', parent_key) == 1 and not call('ZSCORE', base .. ':failed', parent_id) then
        call('HSET', parent_key, 'defa', 'child ' .. key .. ' failed')
        -- A parent that was to wait for its time fails now.
        if call('ZREM', base .. ':delayed', parent_id) == 1 then
          call('HSET', parent_key, 'delay', 0)
          call('ZADD', base .. ':waiting-children', whole(at), parent_id)
        end
      end
      release_parent(base, parent_id, at)
    end
  elseif given(parent.cpof) or given(parent.idof) or given(parent.rdof) then
    if call('SREM', children, key) == 1 then
      if not given(parent.rdof) then call('HSET', parent_key .. ':failed', key, ARGV[6]) end
      if given(parent.cpof) or call('SCARD', children) == 0 then release_parent(base, parent_id, at) end
    end
  end
end

local attempts = count_up(key, 'atm')
local field = failed and 'failedReason' or 'returnvalue'
local set, keep = failed and KEYS[10] or KEYS[9], tonumber(ARGV[8])
if keep == 0 then
  remove_job(id, at)
else
  call('ZADD', set, whole(at), id)
  call('HSET', key, field, ARGV[6], 'finishedOn', whole(at))
  if ARGV[7] ~= '' then call('HSET', key, 'stacktrace', ARGV[7]) end
  if failed then call('HDEL', key, 'defa') end
  local age = tonumber(ARGV[9])
  local old = age > 0 and call('ZRANGEBYSCORE', set, '-inf', '(' .. whole(at - age * 1000), 'LIMIT', 0, 100) or {}
  if keep > 0 then
    for _, gone in ipairs(call('ZREVRANGE', set, keep, keep + 99)) do old[#old + 1] = gone end
  end
  for _, gone in ipairs(old) do
    call('ZREM', set, gone)
    remove_job(gone, at)
  end
end
event(here, ARGV[5], 'jobId', id, field, ARGV[6], 'prev', 'active')
if failed and attempts >= tonumber(ARGV[10]) then
  event(here, 'retries-exhausted', 'jobId', id, 'attemptsMade', attempts)
end
if call('LLEN', KEYS[1]) == 0 and call('LLEN', KEYS[2]) == 0 and call('ZCARD', KEYS[7]) == 0 then
  event(here, 'drained')
end
wake_later(here)
return 0
