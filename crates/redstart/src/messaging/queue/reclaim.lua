-- Takes over the jobs of a worker whose lease ended. Each is charged the attempt it was in, and goes back to the front
-- or, after the last attempt, to the dead letters. One that was to be cancelled is.
--
-- KEYS  1-16 as in place.lua  17 running of that worker  18 workers  19 lines of kinds
-- ARGV  1-5 as in place.lua  6 that worker  7 its name on the wake channel
--       8 attempts at most, where neither the job nor the worker that took it said so
-- Returns  {-1, 0} its lease has not ended or another worker was faster, otherwise {made ready, dead}
local running, workers = KEYS[17], KEYS[18]
local until_us = redis.call('ZSCORE', workers, ARGV[6])
local now = now()
if not until_us or tonumber(until_us) > now then return { -1, 0 } end

local back, buried, count, stalled = {}, 0, 0, {}
local fields = redis.call('HGETALL', running)
for i = 1, #fields, 2 do
  local name = fields[i]
  local record = name ~= '' and redis.call('HGET', jobs, sub(name, 1, 16))
  if record and state(record) == 'x' then
    local worker, since
    record, worker, since = released(record)
    count = count + 1
    stalled[#stalled + 1] = id_of(record)
    free_place(record)
    local most = number(record, 62)
    if most == 0 then most = tonumber(fields[i + 1]) or tonumber(ARGV[8]) end
    redis.call('HDEL', details, id_of(record) .. 'p')
    record = charged(note_attempt(record, worker, since, now, 'its worker died'))
    if flag(record, 16) then
      event('cancelled', id_of(record))
      conclude(record, 'c', '', now)
    elseif attempts(record) >= most then
      bury(record, 'its worker died', now)
      buried = buried + 1
    else
      back[#back + 1] = record
    end
  end
end
event('stalled', table.concat(stalled), ARGV[7])
-- It may have been woken for a job that it did not take, or be the only one that knows when a group's rate limit is free.
local missed = math.min(1, redis.call('LLEN', ready) + redis.call('ZCARD', ranked) + redis.call('ZCARD', groups)
  + redis.call('ZCARD', resting) + redis.call('ZCARD', KEYS[19]))
make_ready('LPUSH', back)
redis.call('DEL', running)
redis.call('ZREM', workers, ARGV[6])
redis.call('ZREM', idle, ARGV[6])
count_ended(count)
wake(#back + missed)
return { #back, buried }
