-- Adds a job.
-- ARGV[3] id ('' = the next number)  [4] name  [5] data  [6] options as JSON  [7] delay in ms  [8] priority
--   [9] LPUSH or RPUSH  [10] deduplication id or ''  [11] its ttl in ms, 0 = while the job is unfinished
--   [12] key of the parent or ''  [13] the parent as JSON  [14] 1 = waits for children
-- Returns {outcome, id}: outcome 0 added, 1 the id exists, 2 deduplicated, -5 no such parent.
local parent = ARGV[12]
if parent ~= '' and call('EXISTS', parent) == 0 then return {-5, ''} end
local at = now()
local count = call('INCR', KEYS[5])
local id = ARGV[3] ~= '' and ARGV[3] or whole(count)
local key = prefix .. id
if call('EXISTS', key) == 1 then
  event(here, 'duplicated', 'jobId', id)
  return {1, id}
end

local dedup = ARGV[10]
if dedup ~= '' then
  local guard = prefix .. 'de:' .. dedup
  local holder = call('GET', guard)
  -- A guard without a ttl ends with its job. If the job is gone, the guard is a leftover.
  if holder and (call('PTTL', guard) >= 0 or call('EXISTS', prefix .. holder) == 1) then
    event(here, 'deduplicated', 'jobId', holder, 'deduplicationId', dedup, 'deduplicatedJobId', id)
    return {2, holder}
  end
  if tonumber(ARGV[11]) > 0 then
    call('SET', guard, id, 'PX', ARGV[11])
  else
    call('SET', guard, id)
  end
end

local fields = {'name', ARGV[4], 'data', ARGV[5], 'opts', ARGV[6], 'timestamp', whole(at), 'delay', ARGV[7],
  'priority', ARGV[8]}
if parent ~= '' then
  for _, field in ipairs({'parentKey', parent, 'parent', ARGV[13]}) do fields[#fields + 1] = field end
end
if dedup ~= '' then
  fields[#fields + 1] = 'deid'
  fields[#fields + 1] = dedup
end
call('HSET', key, unpack(fields))
event(here, 'added', 'jobId', id, 'name', ARGV[4])

local delay, priority = tonumber(ARGV[7]), tonumber(ARGV[8])
if ARGV[14] == '1' then
  call('ZADD', KEYS[16], whole(at), id)
  event(here, 'waiting-children', 'jobId', id)
elseif delay > 0 then
  delay_until(here, id, at + delay)
elseif priority > 0 then
  prioritise(here, id, priority)
  event(here, 'waiting', 'jobId', id)
else
  enqueue(here, id, ARGV[9])
  event(here, 'waiting', 'jobId', id)
end
if parent ~= '' then call('SADD', parent .. ':dependencies', key) end
return {0, id}
