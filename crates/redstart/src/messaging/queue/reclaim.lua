-- Takes over the jobs of a worker whose lease ended. Each is charged the attempt it was in, and goes back to the front
-- or, after the last attempt, to the dead letters.
--
-- KEYS  1 running of that worker  2 workers  3 ready  4 ranked  5 dead  6 idle  7 unique  8 progress
-- ARGV  1 wake channel  2 boost in microseconds  3 that worker  4 its name on the wake channel  5 attempts at most
-- Returns  {-1, 0} its lease has not ended or another worker was faster, otherwise {made ready, dead}
local running, workers, dead, unique, progress = KEYS[1], KEYS[2], KEYS[5], KEYS[7], KEYS[8]
local until_us = redis.call('ZSCORE', workers, ARGV[3])
local now = now()
if not until_us or tonumber(until_us) > now then return { -1, 0 } end

local back, buried = {}, 0
for _, name in ipairs(redis.call('HKEYS', running)) do
  if name ~= '' then
    local record = charged(redis.call('HGET', running, name))
    if attempts(record) >= tonumber(ARGV[5]) then
      bury(dead, record, 'its worker died', now)
      free_unique(unique, record)
      buried = buried + 1
    else
      back[#back + 1] = record
    end
    redis.call('HDEL', progress, sub(name, 1, 16))
  end
end
-- It may have been woken for a job that it did not take.
local missed = math.min(1, redis.call('LLEN', KEYS[3]) + redis.call('ZCARD', KEYS[4]))
make_ready('LPUSH', KEYS[3], KEYS[4], tonumber(ARGV[2]), back)
redis.call('DEL', running)
redis.call('ZREM', workers, ARGV[3])
redis.call('ZREM', KEYS[6], ARGV[4])
wake(KEYS[6], ARGV[1], #back + missed)
return { #back, buried }
