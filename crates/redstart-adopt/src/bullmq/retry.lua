-- Gives a job back after an attempt that failed.
-- ARGV[3] id  [4] token  [5] delay in ms  [6] the reason  [7] stack as JSON  [8] LPUSH or RPUSH
-- Returns as finish.lua.
local id, key = ARGV[3], prefix .. ARGV[3]
if call('EXISTS', key) == 0 then return -1 end
local held = unlock(id, ARGV[4])
if held < 0 then return held end
if call('LREM', KEYS[2], -1, id) < 1 then return -3 end
count_up(key, 'atm')
call('HSET', key, 'failedReason', ARGV[6], 'stacktrace', ARGV[7])
local delay = tonumber(ARGV[5])
local priority = number_in(key, 'priority')
if delay > 0 then
  call('HSET', key, 'delay', ARGV[5])
  delay_until(here, id, now() + delay)
else
  if priority == 0 then enqueue(here, id, ARGV[8]) else prioritise(here, id, priority) end
  event(here, 'waiting', 'jobId', id, 'prev', 'active')
end
return 0
