-- Unregisters a worker and hands back, uncharged, what it still holds.
--
-- KEYS  1-16 as in place.lua  17 running of this worker  18 workers  19 lines of kinds
-- ARGV  1-5 as in place.lua  6 worker  7 the worker that is no longer idle: mostly the same
-- Returns  how many were handed back
local running, workers = KEYS[17], KEYS[18]
local time, back, count = now(), {}, 0
for _, name in ipairs(redis.call('HKEYS', running)) do
  local record = name ~= '' and redis.call('HGET', jobs, sub(name, 1, 16))
  if record and state(record) == 'x' then
    record = released(record)
    count = count + 1
    free_place(record)
    if flag(record, 16) then
      event('cancelled', id_of(record))
      conclude(record, 'c', '', time)
    else
      if flag(record, 8) then redis.call('HDEL', details, id_of(record) .. 'p') end
      back[#back + 1] = unstarted(record)
    end
  end
end
-- It may have been woken for a job that it did not take, or be the only one that knows when a group's rate limit is free.
local missed = math.min(1, redis.call('LLEN', ready) + redis.call('ZCARD', ranked) + redis.call('ZCARD', groups)
  + redis.call('ZCARD', resting) + redis.call('ZCARD', KEYS[19]))
make_ready('LPUSH', back)
redis.call('DEL', running)
redis.call('ZREM', workers, ARGV[6])
redis.call('ZREM', idle, ARGV[7])
count_ended(count)
wake(#back + missed)
return #back
