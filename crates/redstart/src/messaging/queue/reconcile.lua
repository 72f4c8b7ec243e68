-- After a lost reply: raises the epoch, which fences requests that are still on their way, and hands back, uncharged,
-- the deliveries that the worker does not know.
--
-- KEYS  1-16 as in place.lua  17 running of this worker
-- ARGV  1-5 as in place.lua  6 the new epoch  7... the deliveries that the worker knows
-- Returns  -1 not registered, -2 the epoch is not higher than the current one, otherwise how many were handed back
local running = KEYS[17]
local epoch = redis.call('HGET', running, '')
if not epoch then return -1 end
if tonumber(epoch) >= tonumber(ARGV[6]) then return -2 end
redis.call('HSET', running, '', ARGV[6])

local known = { [''] = true }
for i = 7, #ARGV do known[ARGV[i]] = true end
local unknown, back, cancelled = {}, {}, 0
for _, name in ipairs(redis.call('HKEYS', running)) do
  if not known[name] then
    unknown[#unknown + 1] = name
    local record = redis.call('HGET', jobs, sub(name, 1, 16))
    if record and state(record) == 'x' then
      record = released(record)
      free_place(record)
      if flag(record, 16) then
        cancelled = cancelled + 1
        event('cancelled', id_of(record))
        conclude(record, 'c', '', now())
      else
        back[#back + 1] = unstarted(record)
      end
    end
  end
end
each_piece('HDEL', running, unknown)
make_ready('LPUSH', back)
count_ended(#back + cancelled)
wake(#back)
return #back
