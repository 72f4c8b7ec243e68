-- Writes how deliveries ended, many at once. Only the owner's are accepted: a worker whose lease ended and whose jobs
-- went to others is refused as a whole, and a delivery that it no longer holds is skipped.
--
-- KEYS  1-16 as in place.lua  17 running of this worker  18 parked  19 history, by minute  20 tallies of the history
--       21... parked jobs of the kinds that are parked by this call
-- ARGV  1-5 as in place.lua  6 how long to park in microseconds  7 the worker's name on the wake channel
--       8 1 if the jobs of a group run strictly in order  9 how many minutes of history to keep
--       10 number of done jobs that leave nothing but their record, then their deliveries
--          number of other endings, then for each: delivery; ending; a number; a text
--            done    0, the result                     retry  microseconds to wait, the error
--            dead    0, the reason                     back   0, ''
--            cancel  0, ''                             park   number of the kind's key among KEYS, the reason
--          number of tallies, then for each: name, amount
-- Returns  0 refused, 1 written, otherwise one more than the number of other endings that were written: as many as one script
--          should, and the others are for the next, with the tallies
-- After tally.lua too.
local running, parked, history, tallies = KEYS[17], KEYS[18], KEYS[19], KEYS[20]
local worker = ARGV[7]

if redis.call('HEXISTS', running, '') == 0 then return 0 end
local time = now()
local given_back = 0

local at = 10
local function section(width)
  local first = at + 1
  local last = at + tonumber(ARGV[at]) * width
  at = last + 1
  return first, last
end

local first, last = section(1)
for from = first, last, CHUNK do
  local to = math.min(from + CHUNK - 1, last)
  local ids = {}
  for i = from, to do ids[i - from + 1] = sub(ARGV[i], 1, 16) end
  -- Mostly the worker holds all of them. If it does not, their records say which ones it held.
  if redis.call('HDEL', running, unpack(ARGV, from, to)) < #ids then
    local records, still = redis.call('HMGET', jobs, unpack(ids)), {}
    for i, id in ipairs(ids) do
      local record = records[i]
      if record and sub(record, 1, 34) == 'Jx' .. worker and sub(record, 83, 102) == ARGV[from + i - 1] then
        still[#still + 1] = id
      end
    end
    ids = still
  end
  each_piece('HDEL', jobs, ids)
  given_back = given_back + #ids
  -- It was done before its worker heard that it should stop.
  if redis.call('HEXISTS', meta, 'cancels') == 1 then
    for _, id in ipairs(ids) do forget_cancel(id) end
  end
  if keep_events > 0 then event('done', table.concat(ids), worker) end
end

-- Takes a delivery out of the worker's hands; nil if it no longer holds it.
local function take(delivery)
  if redis.call('HDEL', running, delivery) == 0 then return nil end
  local record = redis.call('HGET', jobs, sub(delivery, 1, 16))
  if not record or state(record) ~= 'x' then return nil end
  given_back = given_back + 1
  return released(record)
end

-- Whether the group of a job that does not run now waits for it: its jobs run in their order. The line of a kind has none.
local function group_waits(record)
  local group = ARGV[8] == '1' and group_of(record)
  return group and byte(group, 1) ~= 1
end

-- A job that does not run now keeps at most its place in its group.
local function keep_or_free_place(record)
  if group_waits(record) then free_line(record) else free_place(record) end
end

local soonest
local endings = {
  done = function(record, since, _, text)
    free_place(record)
    local keep = tonumber(flag(record, 64) and extra(record, 'k') or ARGV[4])
    if keep >= 0 then record = note_attempt(record, worker, since, time, '') end
    event('done', id_of(record), worker)
    conclude(record, 'd', text, time)
  end,
  dead = function(record, since, _, text)
    free_place(record)
    record = note_attempt(record, worker, since, time, text)
    event('failed', id_of(record), text)
    bury(charged(record), text, time)
  end,
  cancel = function(record, since)
    free_place(record)
    record = note_attempt(record, worker, since, time, 'cancelled')
    event('cancelled', id_of(record))
    conclude(record, 'c', '', time)
  end,
  retry = function(record, since, wait, text)
    spent = spent + 20
    keep_or_free_place(record)
    if group_waits(record) then record = with_flag(record, 32) end
    record = charged(note_attempt(record, worker, since, time, text))
    redis.call('HSET', jobs, id_of(record), as(record, 'l', time + wait))
    redis.call('ZADD', delayed, format('%.0f', time + wait), id_of(record))
    event('failed', id_of(record), text)
    if not soonest or wait < soonest then soonest = wait end
  end,
}

first, last = section(4)
local back, kinds, written = {}, {}, 1
for i = first, last, 4 do
  if is_enough() then
    written = 1 + (i - first) / 4
    break
  end
  spent = spent + 5
  local record, _, since = take(ARGV[i])
  local ending, value, text = ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  if record then
    -- A job that is to be cancelled does not run again, and is no dead letter that somebody may replay.
    if flag(record, 16) and ending ~= 'done' then ending = 'cancel' end
    if endings[ending] then
      endings[ending](record, since, value, text)
    elseif ending == 'back' then
      free_place(record)
      back[#back + 1] = unstarted(record)
    else
      spent = spent + 25
      -- Parked again, it keeps its limit.
      if not flag(record, 4) then record = with_flag(as(record, 'r', time), 4) end
      local limit = due(record) + tonumber(ARGV[6])
      if limit <= time then
        free_place(record)
        bury(record, text, time)
      else
        keep_or_free_place(record)
        if group_waits(record) then record = with_flag(record, 32) end
        local kind = kind_of(record)
        limit = format('%.0f', limit)
        hold_again(record)
        record = with_flag(unused('Jp' .. sub(record, 3)), 8)
        redis.call('HSET', jobs, id_of(record), record)
        redis.call('HSET', details, id_of(record) .. 'y', sub(text, 1, 1000))
        redis.call('ZADD', KEYS[value], limit, id_of(record))
        -- Of a new kind the schedulers do not know yet when it is due.
        if redis.call('ZADD', parked, 'LT', limit, kind) == 1 then redis.call('SPUBLISH', channel, 'schedule') end
        if not kinds[kind] then
          kinds[kind] = true
          redis.call('SPUBLISH', channel, 'parked ' .. kind)
        end
      end
    end
  end
end
if soonest then announce(soonest) end
-- The first of them comes first again.
local reversed = {}
for i = #back, 1, -1 do reversed[#reversed + 1] = back[i] end
make_ready('LPUSH', reversed)
wake(#back)
count_ended(given_back)
if first <= last then trim_done(written > 1 and written - 1 or (last - first + 1) / 4) end
if written > 1 then return written end

first, last = section(2)
-- A request that is sent again after a lost reply counts once.
if first <= last and given_back > 0 then tally(history, tallies, time, tonumber(ARGV[9]), first, last) end
return 1
