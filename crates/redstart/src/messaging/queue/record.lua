-- Fragment: records. The script's own purpose, KEYS, ARGV and reply follow after place.lua.
--
-- A job is one record, a string in the hash `jobs` (or `ended`, when it is over and kept). Its id is in exactly one
-- container at any time, and byte 2 says in which.
--
--   bytes   what
--   1       'J'
--   2       r ready, l delayed, x running, p parked, w waits for children, z dead, d done, c cancelled, e expired
--   3-18    when it became or becomes ready, or when it ended: server time in microseconds, 16 decimal digits
--   19-34   when it was enqueued, likewise; unique among the jobs of a group
--   35-50   the job's id
--   51-52   attempts that were charged so far, big-endian
--   53-54   tells deliveries apart, big-endian: raised whenever it comes back without being charged an attempt. Odd: it may
--           have run for all that
--   55-56   priority + 32768, big-endian
--   57      flags: its unique key is held 1 = until done, 2 = until started, 3 = for a time; + 4 = it was parked, since
--           bytes 3-18; + 8 = it has details; + 16 = it is to be cancelled; + 32 = it holds a place of its group while
--           it waits for its next attempt or is parked; + 64 = it has extras that concern its end; + 128 = its parent, if it has
--           one, was told that it failed
--   58-61   timeout in milliseconds, 0 = the worker's own
--   62-63   attempts at most, 0 = the worker's own
--   64-65   length of the extras, then the extras: tag (one byte), length (two bytes), value
--             u unique key   g group   p parent, policy and number of this child   n number of children
--             q the same as p for a parent in another queue, then a zero byte, its namespace, a zero byte, its name
--             k how long to keep it in milliseconds, 0 = for ever   e milliseconds after enqueueing when it expires
--             b backoff, for the worker   l its kind has a limit: it needs a place of its kind too, not only of its group
--   then    length of the name (one byte), the name, the payload
--
-- A running record has two more fields after byte 2: the worker (32 bytes) and since when (16 digits).
--
-- Bytes 35-54 name one delivery: they differ when the same job is taken again.
local CHUNK = 4000
local byte, char, sub, format = string.byte, string.char, string.sub, string.format

local function digits(micros)
  return format('%016.0f', micros)
end

-- Whether all of its fields are there.
local function well_formed(record)
  local length, first, letter = #record, byte(record, 1, 2)
  if length < 67 or first ~= 74 then return false end
  local at = letter == 120 and 112 or 64
  local high, low = byte(record, at, at + 1)
  local name = low and at + 2 + high * 256 + low
  return name and name <= length and name + byte(record, name) <= length
end

local function state(record)
  return sub(record, 2, 2)
end

local function due(record)
  return tonumber(sub(record, 3, 18)) or 0
end

local function created(record)
  return tonumber(sub(record, 19, 34)) or 0
end

local function id_of(record)
  return sub(record, 35, 50)
end

local function delivery(record)
  return sub(record, 35, 54)
end

local function number(record, at)
  local high, low = byte(record, at, at + 1)
  return high * 256 + low
end

local function pair(value)
  return char(math.floor(value / 256) % 256, value % 256)
end

local function attempts(record)
  return number(record, 51)
end

local function with_attempts(record, count)
  return sub(record, 1, 50) .. pair(count) .. sub(record, 53)
end

local function charged(record)
  return with_attempts(record, math.min(attempts(record) + 1, 65535))
end

local function with_returns(record, count)
  return sub(record, 1, 52) .. pair(count % 65536) .. sub(record, 55)
end

-- Another delivery of a job that did not run. Whether it ran before that stays known.
local function unused(record)
  return with_returns(record, number(record, 53) + 2)
end

-- Another delivery of a job that may have run, although no attempt is charged.
local function handed_back(record)
  local returns = number(record, 53)
  return with_returns(record, returns - returns % 2 + 3)
end

-- What such a job did once under its id was for the payload that it has.
local function may_have_run(record)
  return attempts(record) > 0 or number(record, 53) % 2 == 1
end

-- In another state, as of a time.
local function as(record, letter, micros)
  return 'J' .. letter .. digits(micros) .. sub(record, 19)
end

-- What a record begins with while a worker has it.
local function holder(worker, now)
  return 'Jx' .. worker .. digits(now)
end

local function held(record, head)
  return head .. sub(record, 3)
end

-- A running record as it was when it was taken; then the worker and since when.
local function released(record)
  return 'Jr' .. sub(record, 51), sub(record, 3, 34), tonumber(sub(record, 35, 50)) or 0
end

local function priority(record)
  return number(record, 55) - 32768
end

local function flag(record, bit)
  return byte(record, 57) % (2 * bit) >= bit
end

local function with_flag(record, bit)
  if flag(record, bit) then return record end
  return sub(record, 1, 56) .. char(byte(record, 57) + bit) .. sub(record, 58)
end

local function without_flag(record, bit)
  if not flag(record, bit) then return record end
  return sub(record, 1, 56) .. char(byte(record, 57) - bit) .. sub(record, 58)
end

local function uniqueness(record)
  return byte(record, 57) % 4
end

local function extra(record, tag)
  local at, last = 66, 65 + number(record, 64)
  while at + 2 <= last do
    local length = number(record, at + 1)
    if sub(record, at, at) == tag then return sub(record, at + 3, at + 2 + length) end
    at = at + 3 + length
  end
end

local function kind_of(record)
  local at = 66 + number(record, 64)
  return sub(record, at + 1, at + byte(record, at))
end

-- Lua's unpack has a limit, so long lists are sent in pieces.
local function each_piece(command, key, list)
  for first = 1, #list, CHUNK do
    redis.call(command, key, unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end
