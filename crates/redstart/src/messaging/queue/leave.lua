-- Unregisters a worker and hands back, uncharged, what it still holds.
--
-- KEYS  1 running of this worker  2 workers  3 ready  4 ranked  5 meta  6 progress
-- ARGV  1 wake channel  2 boost in microseconds  3 worker
-- Returns  how many were handed back
local back = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name ~= '' then
    back[#back + 1] = handed_back(redis.call('HGET', KEYS[1], name))
    redis.call('HDEL', KEYS[6], sub(name, 1, 16))
  end
end
make_ready('LPUSH', KEYS[3], KEYS[4], tonumber(ARGV[2]), back)
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[3])
if #back > 0 then wake(KEYS[5], ARGV[1]) end
-- The last worker leaves nothing behind.
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('HDEL', KEYS[5], 'hungry') end
return #back
