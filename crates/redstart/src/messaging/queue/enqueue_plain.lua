-- Adds jobs that may run at once, in their order: without delay, priority, group, unique key, capacity and events. What
-- most programs enqueue, with no more than it takes; enqueue.lua does the rest. After now.lua and wake.lua.
--
-- KEYS  1 jobs  2 ready  3 idle
-- ARGV  1 wake channel  2... the records from byte 35 on, at most 1000
-- Returns  {1}
local stamp = string.format('%016.0f', now())
local head, count = 'Jr' .. stamp .. stamp, #ARGV - 1
if count == 1 then
  local id = string.sub(ARGV[2], 1, 16)
  redis.call('HSET', KEYS[1], id, head .. ARGV[2])
  redis.call('RPUSH', KEYS[2], id)
else
  local ids, written = {}, {}
  for i = 1, count do
    local record = ARGV[i + 1]
    local id = string.sub(record, 1, 16)
    ids[i] = id
    written[2 * i - 1], written[2 * i] = id, head .. record
  end
  redis.call('HSET', KEYS[1], unpack(written))
  redis.call('RPUSH', KEYS[2], unpack(ids))
end
wake_idle(KEYS[3], ARGV[1], count)
return { 1 }
