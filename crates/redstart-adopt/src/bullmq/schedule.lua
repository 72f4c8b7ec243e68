-- Creates a job scheduler or replaces it, and adds its next job. After layout.lua.
-- ARGV[3] id of the scheduler  [4] name  [5] data as JSON  [6] options of its jobs as JSON  [7] period in ms or ''  [8] cron pattern or ''
--   [9] its time zone or ''  [10] jobs that it may make or ''  [11] with a pattern, when the next job is due
-- Returns {id of the job}, or {'', 1} if a job of that time exists already.
local at, id = now(), ARGV[3]
local base = KEYS[17] .. ':' .. id
local every, limit = tonumber(ARGV[7]), tonumber(ARGV[10])
local before = tonumber(call('ZSCORE', KEYS[17], id) or '')
local known = call('HMGET', base, 'every', 'offset', 'ic')
local same = before and every and tonumber(known[1] or '') == every

-- The job that the scheduler has made and that nobody has taken is replaced.
local replaced = false
local next_id = before and 'repeat:' .. id .. ':' .. whole(before)
if next_id and call('EXISTS', prefix .. next_id) == 1 then
  replaced = call('ZREM', KEYS[6], next_id) + call('ZREM', KEYS[7], next_id) + call('LREM', KEYS[1], 1, next_id)
    + call('LREM', KEYS[3], 1, next_id) > 0
  if replaced then
    local guard = call('HGET', prefix .. next_id, 'deid')
    if guard and call('GET', prefix .. 'de:' .. guard) == next_id then call('DEL', prefix .. 'de:' .. guard) end
    remove_job(next_id, at)
  end
end

local turn = tonumber(ARGV[11]) or at
if same then
  turn = before + every
  if turn < at then
    -- Turns that were missed are not made up for.
    turn = math.floor(at / every) * every
    if turn <= at then turn = turn + every end
  end
end
-- BullMQ keeps the offset of another period, which would put off the job after the next; here it goes with its period.
local offset = every and turn % every or 0
if replaced and same then turn, offset = before, tonumber(known[2] or '') or nil end
turn = math.floor(turn)

local function job_at_turn() return 'repeat:' .. id .. ':' .. whole(turn) end
if every then
  for _ = 1, 32 do
    if call('EXISTS', prefix .. job_at_turn()) == 0 then break end
    turn = turn + every
  end
end
if call('EXISTS', prefix .. job_at_turn()) == 1 then return {'', 1} end

call('ZADD', KEYS[17], whole(turn), id)
call('DEL', base)
call('HSET', base, 'name', ARGV[4], 'ic', known[3] or 1)
local function note(field, value) if value and value ~= '' then call('HSET', base, field, value) end end
note('every', every and whole(every))
note('pattern', ARGV[8])
note('tz', ARGV[9])
note('limit', limit and whole(limit))
note('offset', offset and whole(offset))
if ARGV[6] ~= '{}' then note('opts', ARGV[6]) end
if ARGV[5] ~= '{}' then note('data', ARGV[5]) end
call('INCR', KEYS[5])

local options = cjson.decode(ARGV[6])
options['repeat'] = {count = 1, every = every, limit = limit}
if ARGV[8] ~= '' then options['repeat'].pattern, options.prevMillis = ARGV[8], turn end
if ARGV[9] ~= '' then options['repeat'].tz = ARGV[9] end
options.jobId, options.repeatJobKey, options.timestamp = job_at_turn(), id, at
options.delay = math.max(0, turn - at)
insert_as(here, options.jobId, ARGV[4], ARGV[5], options, at, {'rjk', id})
return {options.jobId}
