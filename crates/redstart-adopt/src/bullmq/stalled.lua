-- Gives back jobs whose workers are gone: active in two checks in a row, and not locked.
-- ARGV[3] times that a job may stall  [4] ms for which no other worker checks
-- Returns the ids that were given back.
if not call('SET', KEYS[14], whole(now()), 'PX', ARGV[4], 'NX') then return {} end
local suspects = call('SMEMBERS', KEYS[13])
call('DEL', KEYS[13])
local back = {}
for _, id in ipairs(suspects) do
  local key = prefix .. id
  if call('EXISTS', key .. ':lock') == 0 and call('LREM', KEYS[2], 1, id) > 0 then
    -- A job of a scheduler that exists is never failed for this, as in BullMQ.
    local scheduler = call('HGET', key, 'rjk')
    local recurs = scheduler
      and (call('EXISTS', KEYS[17] .. ':' .. scheduler) == 1 or call('ZSCORE', KEYS[17], scheduler))
    if count_up(key, 'stc') > tonumber(ARGV[3]) and not recurs then
      -- The worker that takes it next fails it, as in BullMQ.
      call('HSET', key, 'defa', 'job stalled more than allowable limit')
    end
    enqueue(here, id, 'RPUSH')
    event(here, 'waiting', 'jobId', id, 'prev', 'active')
    event(here, 'stalled', 'jobId', id)
    back[#back + 1] = id
  end
end
-- All of them, as in BullMQ: the jobs of workers that are gone are the oldest.
for first = 0, call('LLEN', KEYS[2]) - 1, 1000 do
  call('SADD', KEYS[13], unpack(call('LRANGE', KEYS[2], first, first + 999)))
end
return back
