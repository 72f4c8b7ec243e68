-- Removes a job scheduler, and its next job if that is delayed. After layout.lua.
-- ARGV[3] id of the scheduler
-- Returns 1, or 0 if there is no such scheduler.
local turn = tonumber(call('ZSCORE', KEYS[17], ARGV[3]) or '')
if not turn then return 0 end
local next_id = 'repeat:' .. ARGV[3] .. ':' .. whole(turn)
if call('ZREM', KEYS[6], next_id) == 1 then
  remove_job(next_id, now())
  event(here, 'removed', 'jobId', next_id, 'prev', 'delayed')
end
call('ZREM', KEYS[17], ARGV[3])
call('DEL', KEYS[17] .. ':' .. ARGV[3])
return 1
