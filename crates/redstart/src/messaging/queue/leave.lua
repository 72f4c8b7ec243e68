-- Unregisters a worker and hands back, uncharged, what it still holds.
--
-- KEYS  1 running of this worker  2 workers  3 ready  4 ranked  5 idle  6 progress
-- ARGV  1 wake channel  2 boost in microseconds  3 worker  4 its name on the wake channel
-- Returns  how many were handed back
local back = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name ~= '' then
    back[#back + 1] = handed_back(redis.call('HGET', KEYS[1], name))
    redis.call('HDEL', KEYS[6], sub(name, 1, 16))
  end
end
-- It may have been woken for a job that it did not take.
local missed = math.min(1, redis.call('LLEN', KEYS[3]) + redis.call('ZCARD', KEYS[4]))
make_ready('LPUSH', KEYS[3], KEYS[4], tonumber(ARGV[2]), back)
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[3])
redis.call('ZREM', KEYS[5], ARGV[4])
wake(KEYS[5], ARGV[1], #back + missed)
return #back
