-- Adds a job.
-- ARGV[3] id ('' = the next number)  [4] name  [5] data  [6] options as JSON  [7] delay in ms  [8] priority
--   [9] LPUSH or RPUSH  [10] deduplication id or ''  [11] its ttl in ms, 0 = while the job is unfinished
--   [12] key of the parent or ''  [13] the parent as JSON  [14] 1 = waits for children  [15] 1 = the last child
-- Returns {outcome, id}: outcome 0 added, 1 the id exists, 2 deduplicated, -5 no such parent, -7 a child that has another
--   parent, -8 a child that is deduplicated.
local parent = ARGV[12]
if parent ~= '' and call('EXISTS', parent) == 0 then return {-5, ''} end
local at = now()
local count = call('INCR', KEYS[5])
local id = ARGV[3] ~= '' and ARGV[3] or whole(count)
local key = prefix .. id
if call('EXISTS', key) == 1 then
  if parent ~= '' then
    local other = call('HGET', key, 'parentKey')
    if other and other ~= '' and other ~= parent and call('EXISTS', other) == 1 then return {-7, id} end
    -- Without this the parent would wait for a child that never reports to it.
    local children = parent .. ':dependencies'
    if call('ZSCORE', KEYS[9], id) then
      call('HSET', parent .. ':processed', key, call('HGET', key, 'returnvalue') or 'null')
    else
      call('SADD', children, key)
    end
    call('HSET', key, 'parentKey', parent, 'parent', ARGV[13])
    -- Earlier children do not release it: there are more to come.
    if ARGV[15] == '1' and call('SCARD', children) == 0 then
      local base, parent_id = parent_of(parent, ARGV[13])
      release_parent(base, parent_id, at)
    end
  end
  event(here, 'duplicated', 'jobId', id)
  return {1, id}
end

local dedup = ARGV[10]
if dedup ~= '' then
  local guard = prefix .. 'de:' .. dedup
  local holder = call('GET', guard)
  -- A guard without a ttl ends with its job. If the job is gone, the guard is a leftover.
  if holder and (call('PTTL', guard) >= 0 or call('EXISTS', prefix .. holder) == 1) then
    if parent ~= '' then return {-8, holder} end
    event(here, 'deduplicated', 'jobId', holder, 'deduplicationId', dedup, 'deduplicatedJobId', id)
    return {2, holder}
  end
  if tonumber(ARGV[11]) > 0 then
    call('SET', guard, id, 'PX', ARGV[11])
  else
    call('SET', guard, id)
  end
end

local fields = {}
if parent ~= '' then fields = {'parentKey', parent, 'parent', ARGV[13]} end
if dedup ~= '' then
  fields[#fields + 1] = 'deid'
  fields[#fields + 1] = dedup
end
insert(here, {
  id = id, name = ARGV[4], data = ARGV[5], opts = ARGV[6], fields = fields, delay = tonumber(ARGV[7]),
  priority = tonumber(ARGV[8]), push = ARGV[9], waits = ARGV[14] == '1',
}, at)
if parent ~= '' then call('SADD', parent .. ':dependencies', key) end
return {0, id}
