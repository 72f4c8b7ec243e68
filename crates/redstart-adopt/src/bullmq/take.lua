-- Takes the next job for a worker.
-- ARGV[3] token  [4] lease in ms  [5] name of the worker or ''  [6] jobs per window, 0 = unlimited  [7] the window in ms
-- Returns {id, field, value, ...}, or {'', ms} with the time after which asking again may help, 0 = unknown.
local at = now()
promote(here, at)
local most = tonumber(call('HGET', KEYS[4], 'max') or ARGV[6])
local window = tonumber(call('HGET', KEYS[4], 'duration') or ARGV[7])
if most > 0 and tonumber(call('GET', KEYS[15]) or 0) >= most then
  local left = call('PTTL', KEYS[15])
  if left > 0 then return {'', left} end
  call('DEL', KEYS[15])
end
if is_paused(here) or is_maxed(here) then return {'', 0} end

-- The next id that has a job: markers stood among them before version 5, and a job may have been removed.
local id
for _ = 1, 100 do
  id = call('RPOPLPUSH', KEYS[1], KEYS[2])
  if not id then
    local first = call('ZPOPMIN', KEYS[7])
    id = first[1]
    if id then call('LPUSH', KEYS[2], id) else call('DEL', KEYS[8]) end
  end
  if not id or call('EXISTS', prefix .. id) == 1 then break end
  call('LREM', KEYS[2], 1, id)
  id = nil
end
if not id then
  local first = call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
  if first[2] then return {'', math.max(1, math.floor(tonumber(first[2]) / 4096) - at)} end
  return {'', 0}
end

local key = prefix .. id
if most > 0 and call('HEXISTS', key, 'defa') == 0 and call('INCR', KEYS[15]) == 1 then
  call('PEXPIRE', KEYS[15], window)
end
call('SET', key .. ':lock', ARGV[3], 'PX', ARGV[4])
call('HSET', key, 'processedOn', whole(at))
if ARGV[5] ~= '' then call('HSET', key, 'pb', ARGV[5]) end
call('HINCRBY', key, 'ats', 1)
event(here, 'active', 'jobId', id, 'prev', 'waiting')
-- Another worker may find more.
wake(here)
local job = call('HGETALL', key)
table.insert(job, 1, id)
return job
