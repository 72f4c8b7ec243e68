-- Adds jobs that may run at once, in their order: without delay, priority, group, unique key, capacity and events. What
-- most programs enqueue, with no more than it takes; enqueue.lua does the rest. After now.lua.
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
-- As many idle workers as there are jobs; one that does not listen has died, and the next is woken instead.
while count > 0 do
  local worker = redis.call('ZPOPMIN', KEYS[3])[1]
  if not worker then break end
  if redis.call('SPUBLISH', ARGV[1] .. ':' .. worker, '') > 0 then count = count - 1 end
end
return { 1 }
