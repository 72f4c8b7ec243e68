-- What the rows of the tables beside this file use. A row fills the keys of one script, and returns KEYS and ARGV of the
-- call that is measured.
--
-- Defines  N, how many elements a key is filled with; call; at, the present in us; text(number); leases, scores and names
--          below; request(i), the name of a reservation; job(…), a record of a queue
local N = 3000
local call, char = redis.call, string.char
local time = call('TIME')
local at = time[1] * 1000000 + time[2]
local PAST, FUTURE = at - 3600000000, at + 3600000000
-- As in place.lua.
local AWAY = 4000000000000000

local function text(number)
  return string.format('%.0f', number)
end

local function name(i)
  return string.format('member-%06d', i)
end

-- The name of a reservation of ann's.
local function request(i)
  return '3:ann' .. name(i)
end

-- Runs a command with many words, in pieces of whole groups of `width` words.
local function many(command, key, width, word)
  for first = 1, N, 500 do
    local words = {}
    for i = first, math.min(first + 499, N) do
      for column = 1, width do
        words[#words + 1] = word(i, column)
      end
    end
    call(command, key, unpack(words))
  end
end

local function zfill(key, score, member)
  many('ZADD', key, 2, function(i, column)
    if column == 1 then
      return text(type(score) == 'function' and score(i) or score)
    end
    return (member or name)(i)
  end)
end

local function hfill(key, value, field)
  many('HSET', key, 2, function(i, column)
    if column == 1 then
      return (field or name)(i)
    end
    return type(value) == 'function' and value(i) or value
  end)
end

local function lfill(key, value)
  many('RPUSH', key, 1, value or name)
end

local function sfill(key)
  many('SADD', key, 1, name)
end

local function xfill(key, id)
  for i = 1, N do
    call('XADD', key, id and id(i) or '*', 'k', name(i), 'v', '+value')
  end
end

-- The record of a job from byte 35 on, and a whole one in the state of this letter. Flags as in record.lua.
local function job_body(id, flags, extras)
  extras = extras or ''
  return id .. '\0\0\0\0\128\0' .. char(flags or 0) .. '\0\0\0\0\0\3' .. char(math.floor(#extras / 256), #extras % 256) .. extras
    .. '\4mail{}'
end

local function digits(micros)
  return string.format('%016.0f', micros)
end

local function job(id, letter, due, flags, extras)
  return 'J' .. letter .. digits(due or PAST) .. digits(PAST) .. job_body(id, flags, extras)
end

local WORKER = string.rep('w', 32)
local function held(id, flags, extras)
  return 'Jx' .. WORKER .. digits(PAST) .. string.sub(job(id, 'r', PAST, flags, extras), 3)
end

local function job_id(i)
  return string.format('%016d', i)
end

local function delivery(i)
  return job_id(i) .. '\0\0\0\0'
end

local function extra(tag, value)
  return tag .. char(math.floor(#value / 256), #value % 256) .. value
end

-- The keys of a queue, with more behind them, and the arguments that all of its scripts take.
local function queue(...)
  local keys = {
    'jobs', 'ready', 'ranked', 'delayed', 'idle', 'meta', 'unique', 'dead', 'done', 'ended', 'details', 'groups', 'grouped',
    'resting', 'parents', 'events',
  }
  for _, key in ipairs({ ... }) do
    keys[#keys + 1] = key
  end
  return keys
end

local function setting(...)
  local args = { 'channel', '60000000', '1000', '86400000', '100' }
  for _, arg in ipairs({ ... }) do
    args[#args + 1] = arg
  end
  return args
end
