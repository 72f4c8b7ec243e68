-- Adds a job that may run at once, as enqueue_plain.lua does. If the worker that the caller names waits for jobs, the job is
-- handed over to it: it is that worker's from now on, as if it had been reserved, and comes with the message that wakes it. If
-- the message is lost, the worker holds more than it knows of and hands it back. After now.lua.
--
-- KEYS  1 jobs  2 ready  3 idle  4 events  5 meta  6 workers  7 running of that worker
-- ARGV  1 wake channel  2 how many events to keep (0 = none)  3 the record from byte 35 on  4 that worker ('' = none)
-- Returns  {1, the worker to name for the next job ('' = none is known)}
local call, sub, byte = redis.call, string.sub, string.byte
local jobs, ready, idle, channel, body, named = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3], ARGV[4]
local time = now()
local stamp = string.format('%016.0f', time)
local id, from = sub(body, 1, 16), stamp .. stamp .. body

local function note(what, text)
  if ARGV[2] ~= '0' then
    call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[2], '*', 'event', what, 'jobs', id, 'text', text)
  end
end

local function kind()
  local high, low = byte(body, 30, 31)
  local at = 32 + high * 256 + low
  return sub(body, at + 1, at + byte(body, at))
end

-- Only a worker that said how it takes such jobs, and was heard of so lately that it is not about to lose its lease: what it is
-- given, it may be charged for. So a job that has one attempt is not handed over, and other jobs that wait come first.
local function is_handed_over()
  if named == '' or #body > 16384 or not call('ZSCORE', idle, named) then return false end
  local epoch, most, lease = string.match(call('HGET', KEYS[7], '') or '', '^(%d+) (%d+) (%d+)$')
  if not epoch then return false end
  local high, low = byte(body, 28, 29)
  local own = high * 256 + low
  if (own > 0 and own or tonumber(most)) < 2 then return false end
  local until_us = tonumber(call('ZSCORE', KEYS[6], named) or 0)
  if until_us < time + lease / 2 or call('LLEN', ready) > 0 or call('HEXISTS', KEYS[5], 'paused') == 1 then
    return false
  end
  local worker = sub(named, 1, 32)
  call('HSET', jobs, id, 'Jx' .. worker .. stamp .. from)
  call('ZREM', idle, named)
  local message = 'job ' .. named .. ' ' .. epoch .. ' ' .. from
  -- If nobody listens, it has died.
  if call('SPUBLISH', channel .. ':' .. worker, message) == 0 then return false end
  call('HSET', KEYS[7], sub(body, 1, 20), most)
  call('HINCRBY', KEYS[5], 'running', 1)
  if ARGV[2] ~= '0' then
    note('added', kind())
    note('started', worker)
  end
  return true
end

if not is_handed_over() then
  call('HSET', jobs, id, 'Jr' .. from)
  call('RPUSH', ready, id)
  if ARGV[2] ~= '0' then note('added', kind()) end
  named = ''
  repeat
    named = call('ZPOPMIN', idle)[1] or ''
  until named == '' or call('SPUBLISH', channel .. ':' .. sub(named, 1, 32), '') > 0
end
-- Whoever waits longest; otherwise this one may wait again by then.
return { 1, call('ZRANGE', idle, 0, 0)[1] or named }
