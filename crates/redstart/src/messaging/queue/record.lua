-- Fragment: records, shared by all scripts of the queue. The script's own purpose, KEYS, ARGV and reply follow it.
--
-- A job is one record, a string that moves whole between the queue's containers; it is in exactly one of them at any
-- time.
--
--   bytes   what
--   1       'J'
--   2-17    when it became or becomes ready: server time in microseconds, 16 decimal digits
--   18-33   the job's id
--   34-35   attempts that were charged so far, big-endian
--   36-37   how often it was handed back unstarted, big-endian
--   38-39   priority + 32768, big-endian
--   40      flags: 1 = its unique key is held until done, 2 = until started, + 4 = it was parked, since bytes 2-17
--   41-44   timeout in milliseconds, 0 = the worker's own
--   45-46   length of the unique key, then the key
--   then    length of the name (one byte), the name, the payload
--
-- Bytes 18-37 name one delivery: they differ when the same job is taken again.
local CHUNK = 4000
-- In the place of a record of the ready list that was deleted.
local DELETED = 'deleted'
local byte, char, sub, format = string.byte, string.char, string.sub, string.format

local function digits(micros)
  return format('%016.0f', micros)
end

local function well_formed(record)
  return #record >= 47 and byte(record, 1) == 74
end

local function due(record)
  return tonumber(sub(record, 2, 17)) or 0
end

local function delivery(record)
  return sub(record, 18, 37)
end

local function attempts(record)
  local high, low = byte(record, 34, 35)
  return high * 256 + low
end

local function pair(number)
  return char(math.floor(number / 256) % 256, number % 256)
end

local function charged(record)
  return sub(record, 1, 33) .. pair(attempts(record) + 1) .. sub(record, 36)
end

local function handed_back(record)
  local high, low = byte(record, 36, 37)
  return sub(record, 1, 35) .. pair((high * 256 + low + 1) % 65536) .. sub(record, 38)
end

local function ready_at(record, micros)
  return 'J' .. digits(micros) .. sub(record, 18)
end

local function priority(record)
  local high, low = byte(record, 38, 39)
  return high * 256 + low - 32768
end

-- Lua's unpack has a limit, so long lists are sent in pieces.
local function each_piece(command, key, list)
  for first = 1, #list, CHUNK do
    redis.call(command, key, unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end

-- How long the unique key is held: 0 there is none, 1 until done, 2 until started.
local function uniqueness(record)
  return byte(record, 40) % 4
end

local function unique_key(record)
  local high, low = byte(record, 45, 46)
  return sub(record, 47, 46 + high * 256 + low)
end

-- Frees the unique key of a record if this job holds it.
local function free_unique(unique, record)
  if uniqueness(record) == 0 then return end
  local key = unique_key(record)
  if redis.call('HGET', unique, key) == sub(record, 18, 33) then
    redis.call('HDEL', unique, key)
  end
end

-- Makes records available to workers: those of priority 0 in the list at `side`, the others by rank.
local function make_ready(side, ready, ranked, boost, records)
  local plain, scored = {}, {}
  for _, record in ipairs(records) do
    local level = priority(record)
    if level == 0 then
      plain[#plain + 1] = record
    else
      scored[#scored + 1] = format('%.0f', due(record) - level * boost)
      scored[#scored + 1] = record
    end
  end
  each_piece(side, ready, plain)
  each_piece('ZADD', ranked, scored)
end

-- Wakes as many idle workers as there are jobs. Each listens on a channel of its own. If nobody listens, the worker has
-- died, and the next one is woken instead.
local function wake(idle, channel, jobs)
  while jobs > 0 do
    local worker = redis.call('ZPOPMIN', idle)[1]
    if not worker then return end
    if redis.call('SPUBLISH', channel .. ':' .. worker, '') > 0 then jobs = jobs - 1 end
  end
end

-- Tells idle workers that a job is due after this time, so that they look then.
local function announce(idle, channel, micros)
  if redis.call('EXISTS', idle) == 1 then
    redis.call('SPUBLISH', channel, 'due ' .. format('%.0f', micros))
  end
end

local function bury(dead, record, reason, now)
  redis.call('XADD', dead, '*', 'record', record, 'reason', reason, 'at', format('%.0f', now))
end
