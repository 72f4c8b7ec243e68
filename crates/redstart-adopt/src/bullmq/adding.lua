-- Fragment: how a job is added. After layout.lua.
--
-- KEYS     none of its own: q names them, see layout.lua
-- Defines  job_at(first) -> the job in ARGV[first] and the 12 that follow:
--            id ('' = the next number), name, data, options as JSON, delay in ms, priority, LPUSH or RPUSH, deduplication id or '', its ttl
--            in ms (0 = while the job is unfinished), key of the parent or '', the parent as JSON, 1 = waits for children, 1 = the last child
--          guarded(q, dedup) -> the id of the job that holds a deduplication, or nil
--          deduplicate(q, job, id) -> nil if the job may be added, and is guarded now, or the id of the job that stands in its way
--          belongs(q, id, parent) -> whether a job that exists has another parent, which exists too
--          add(q, job, at) -> outcome, id: outcome 0 added, 1 the id exists, 2 deduplicated, -5 no such parent, -7 a child that has another
--            parent, -8 a child that is deduplicated
local function job_at(first)
  return {
    id = ARGV[first], name = ARGV[first + 1], data = ARGV[first + 2], opts = ARGV[first + 3], delay = tonumber(ARGV[first + 4]),
    priority = tonumber(ARGV[first + 5]), push = ARGV[first + 6], dedup = ARGV[first + 7], ttl = ARGV[first + 8],
    parent = ARGV[first + 9], parent_json = ARGV[first + 10], waits = ARGV[first + 11] == '1', last = ARGV[first + 12] == '1',
  }
end

local function guarded(q, dedup)
  local guard = q.base .. 'de:' .. dedup
  local holder = call('GET', guard)
  -- A guard without a ttl ends with its job. If the job is gone, the guard is a leftover.
  if holder and (call('PTTL', guard) >= 0 or call('EXISTS', q.base .. holder) == 1) then return holder end
end

local function belongs(q, id, parent)
  local other = call('HGET', q.base .. id, 'parentKey')
  return other and other ~= '' and other ~= parent and call('EXISTS', other) == 1
end

-- Guards a job's deduplication, or says which job holds it. The rules are those of the options.
local function deduplicate(q, job, id)
  local rules = rules_of(cjson.decode(job.opts).de)
  local keep_last, ttl = given(rules.keepLastIfActive), tonumber(job.ttl)
  local guard, kept = q.base .. 'de:' .. job.dedup, q.base .. 'dn:' .. job.dedup
  local function hold(by)
    if ttl > 0 and not keep_last then call('SET', guard, by, 'PX', job.ttl) else call('SET', guard, by) end
  end
  local holder = guarded(q, job.dedup)
  if not holder then
    hold(id)
    return nil
  end
  if given(rules.replace) and call('ZREM', q.delayed, holder) == 1 then
    local key = q.base .. holder
    call('DEL', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':unsuccessful')
    event(q, 'removed', 'jobId', holder, 'prev', 'delayed')
    event(q, 'deduplicated', 'jobId', id, 'deduplicationId', job.dedup, 'deduplicatedJobId', holder)
    -- What was kept while the replaced job ran is older than this one.
    call('DEL', kept)
    if ttl > 0 and not keep_last and not given(rules.extend) then
      call('SET', guard, id, 'KEEPTTL')
    else
      hold(id)
    end
    return nil
  end
  if job.parent ~= '' then return holder end
  local told = not given(rules.replace)
  if keep_last and call('LPOS', q.active, holder) then
    -- It is added when the holder ends, which must guard it until then.
    call('DEL', kept)
    call('HSET', kept, 'name', job.name, 'data', job.data, 'opts', job.opts, 'jid', id)
    call('PERSIST', guard)
    told = true
  elseif told and given(rules.extend) and ttl > 0 then
    hold(holder)
  end
  if told then event(q, 'deduplicated', 'jobId', holder, 'deduplicationId', job.dedup, 'deduplicatedJobId', id) end
  return holder
end

local function add(q, job, at)
  local parent = job.parent
  if parent ~= '' and call('EXISTS', parent) == 0 then return -5, '' end
  local count = call('INCR', q.base .. 'id')
  local id = job.id ~= '' and job.id or whole(count)
  local key = q.base .. id
  if call('EXISTS', key) == 1 then
    if parent ~= '' then
      if belongs(q, id, parent) then return -7, id end
      -- Without this the parent would wait for a child that never reports to it.
      local children = parent .. ':dependencies'
      if call('ZSCORE', q.base .. 'completed', id) then
        call('HSET', parent .. ':processed', key, call('HGET', key, 'returnvalue') or 'null')
      else
        call('SADD', children, key)
      end
      call('HSET', key, 'parentKey', parent, 'parent', job.parent_json)
      -- Earlier children do not release it: there are more to come.
      if job.last and call('SCARD', children) == 0 then
        local base, parent_id = parent_of(parent, job.parent_json)
        release_parent(base, parent_id, at)
      end
    end
    event(q, 'duplicated', 'jobId', id)
    return 1, id
  end

  local fields = {}
  if parent ~= '' then fields = {'parentKey', parent, 'parent', job.parent_json} end
  if job.dedup ~= '' then
    local holder = deduplicate(q, job, id)
    if holder then return parent ~= '' and -8 or 2, holder end
    fields[#fields + 1] = 'deid'
    fields[#fields + 1] = job.dedup
  end
  insert(q, {
    id = id, name = job.name, data = job.data, opts = job.opts, fields = fields, delay = job.delay, priority = job.priority,
    push = job.push, waits = job.waits,
  }, at)
  if parent ~= '' then call('SADD', parent .. ':dependencies', key) end
  return 0, id
end
