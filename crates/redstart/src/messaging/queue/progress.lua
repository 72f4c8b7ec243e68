-- Records the progress of a delivery, or a line of its log, while its worker holds it.
--
-- KEYS  1-16 as in place.lua  17 running of this worker
-- ARGV  1-5 as in place.lua  6 delivery  7 'progress' or 'log'  8 the value
-- Returns  1 recorded, 0 the delivery is no longer held
if redis.call('HEXISTS', KEYS[17], ARGV[6]) == 0 then return 0 end
local id = sub(ARGV[6], 1, 16)
local record = redis.call('HGET', jobs, id)
if not record or state(record) ~= 'x' then return 0 end
local taken, worker, since = released(record)
if not flag(taken, 8) then redis.call('HSET', jobs, id, held(with_flag(taken, 8), holder(worker, since))) end
if ARGV[7] == 'log' then
  local line = redis.call('HINCRBY', details, id .. 'n', 1) - 1
  redis.call('HSET', details, id .. 'l' .. (line % KEPT_LINES), ARGV[8])
else
  redis.call('HSET', details, id .. 'p', ARGV[8])
  event('progress', id, ARGV[8])
end
return 1
