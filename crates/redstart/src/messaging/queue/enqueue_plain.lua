-- Adds jobs that may run at once, in their order: without delay, priority, group, unique key and capacity. What most
-- programs enqueue, with no more than it takes; enqueue.lua does the rest. After now.lua and wake.lua.
--
-- KEYS  1 jobs  2 ready  3 idle  4 events
-- ARGV  1 wake channel  2 how many events to keep (0 = none)  3... the records from byte 35 on, at most 1000
-- Returns  {1}
local byte, sub = string.byte, string.sub
local stamp = string.format('%016.0f', now())
local head, count = 'Jr' .. stamp .. stamp, #ARGV - 2

-- One event for all jobs of a kind that follow each other; the kind comes after the extras.
local function note(ids)
  local function kind_of(body)
    local high, low = byte(body, 30, 31)
    local at = 32 + high * 256 + low
    return sub(body, at + 1, at + byte(body, at))
  end
  local first, kind = 1, kind_of(ARGV[3])
  for i = 2, count + 1 do
    local other = i <= count and kind_of(ARGV[i + 2])
    if other ~= kind then
      redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[2], '*',
        'event', 'added', 'jobs', table.concat(ids, '', first, i - 1), 'text', kind)
      first, kind = i, other
    end
  end
end

if count == 1 then
  local id = sub(ARGV[3], 1, 16)
  redis.call('HSET', KEYS[1], id, head .. ARGV[3])
  redis.call('RPUSH', KEYS[2], id)
  if ARGV[2] ~= '0' then note({ id }) end
else
  local ids, written = {}, {}
  for i = 1, count do
    local record = ARGV[i + 2]
    local id = sub(record, 1, 16)
    ids[i] = id
    written[2 * i - 1], written[2 * i] = id, head .. record
  end
  redis.call('HSET', KEYS[1], unpack(written))
  redis.call('RPUSH', KEYS[2], unpack(ids))
  if ARGV[2] ~= '0' then note(ids) end
end
wake_idle(KEYS[3], ARGV[1], count)
return { 1 }
