-- Takes over the jobs of a worker whose lease ended. Each is charged the attempt it was in, and goes back to the front
-- or, after the last attempt, to the dead letters.
--
-- KEYS  1 running of that worker  2 workers  3 ready  4 ranked  5 dead  6 meta  7 unique  8 progress
-- ARGV  1 wake channel  2 boost in microseconds  3 that worker  4 attempts at most
-- Returns  {-1, 0} its lease has not ended or another worker was faster, otherwise {made ready, dead}
local running, workers, dead, unique, progress = KEYS[1], KEYS[2], KEYS[5], KEYS[7], KEYS[8]
local until_us = redis.call('ZSCORE', workers, ARGV[3])
local now = now()
if not until_us or tonumber(until_us) > now then return { -1, 0 } end

local back, buried = {}, 0
for _, name in ipairs(redis.call('HKEYS', running)) do
  if name ~= '' then
    local record = charged(redis.call('HGET', running, name))
    if attempts(record) >= tonumber(ARGV[4]) then
      bury(dead, record, 'its worker died', now)
      free_unique(unique, record)
      buried = buried + 1
    else
      back[#back + 1] = record
    end
    redis.call('HDEL', progress, sub(name, 1, 16))
  end
end
make_ready('LPUSH', KEYS[3], KEYS[4], tonumber(ARGV[2]), back)
redis.call('DEL', running)
redis.call('ZREM', workers, ARGV[3])
if #back > 0 then wake(KEYS[6], ARGV[1]) end
return { #back, buried }
