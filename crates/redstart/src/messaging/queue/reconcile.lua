-- After a lost reply: raises the epoch, which fences requests that are still on their way, and hands back, uncharged,
-- the deliveries that the worker does not know.
--
-- KEYS  1 running of this worker  2 ready  3 ranked  4 idle
-- ARGV  1 wake channel  2 boost in microseconds  3 the new epoch  4... the deliveries that the worker knows
-- Returns  -1 not registered, -2 the epoch is not higher than the current one, otherwise how many were handed back
local epoch = redis.call('HGET', KEYS[1], '')
if not epoch then return -1 end
if tonumber(epoch) >= tonumber(ARGV[3]) then return -2 end
redis.call('HSET', KEYS[1], '', ARGV[3])

local known = { [''] = true }
for i = 4, #ARGV do known[ARGV[i]] = true end
local unknown, back = {}, {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not known[name] then
    unknown[#unknown + 1] = name
    back[#back + 1] = handed_back(redis.call('HGET', KEYS[1], name))
  end
end
each_piece('HDEL', KEYS[1], unknown)
make_ready('LPUSH', KEYS[2], KEYS[3], tonumber(ARGV[2]), back)
wake(KEYS[4], ARGV[1], #back)
return #back
