-- Renews a worker's lease while it is registered: it never takes back what was given to others.
--
-- KEYS  1 running of this worker  2 workers  3 meta
-- ARGV  1 worker  2 lease in microseconds
-- Returns  {-1} not registered, otherwise {how many jobs the worker holds, then those of them that are to be cancelled}
if redis.call('HEXISTS', KEYS[1], '') == 0 then return { -1 } end
redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[2]), ARGV[1])
local reply = { redis.call('HLEN', KEYS[1]) - 1 }
if redis.call('HEXISTS', KEYS[3], 'cancels') == 1 then
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    local id = sub(name, 1, 16)
    if redis.call('HEXISTS', KEYS[3], 'c:' .. id) == 1 then reply[#reply + 1] = id end
  end
end
return reply
