-- Adds jobs that share delay, priority and group. All of them or, at capacity or for a taken unique key, none.
--
-- KEYS  1-16 as in place.lua  17 (with a unique key) the mark of this request, so that it adds nothing if it is sent again
--       18 (with a unique key) unique keys that are held for a time, by its end
-- ARGV  1-5 as in place.lua  6 capacity (0 = none)  7 delay in microseconds, or '@' and the time  8 priority
--       9 group ('' = none)  10 unique key ('' = none)  11 how it is held: 1 until done, 2 until started, 3 for a time
--       12 that time in microseconds  13 what happens to a waiting duplicate: 'keep', 'replace' its payload, or 'restart'
--       its delay too  14 how long the mark stays in milliseconds  15... the records from byte 35 on
-- Returns  {1} added, {0} full, {2, id, 1 if its payload was replaced} the unique key is held by that job
local mark, timed = KEYS[17], KEYS[18]
local capacity, level, group, key = tonumber(ARGV[6]), tonumber(ARGV[8]), ARGV[9], ARGV[10]
local count, now = #ARGV - 14, now()
local delay
if sub(ARGV[7], 1, 1) == '@' then
  delay = math.max(0, tonumber(sub(ARGV[7], 2)) - now)
else
  delay = tonumber(ARGV[7])
end

-- Workers sleep until the first delayed job is due; only a new first one matters to them.
local function announce_first(at)
  if tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]) >= at then announce(delay) end
end

-- Puts the new payload into a job that has not started yet. One between two attempts has started, and one that was handed
-- back or replayed may have: what it did once under its id was for the old payload. Returns nil if it had the key only until
-- it started: then the key is free for the new payload.
local function replace(id)
  local record = redis.call('HGET', jobs, id)
  if not record or not well_formed(record) then return 0 end
  if may_have_run(record) then return uniqueness(record) ~= 2 and 0 or nil end
  local letter = state(record)
  if letter ~= 'r' and letter ~= 'l' and letter ~= 'p' then return 0 end
  local body, group = ARGV[15], group_of(record)
  record = sub(record, 1, 65 + number(record, 64)) .. sub(body, 32 + number(body, 30))
  if ARGV[13] == 'restart' then
    if letter == 'l' then
      record = as(record, 'l', now + delay)
      redis.call('ZADD', delayed, format('%.0f', now + delay), id)
      announce_first(now + delay)
    end
    -- It must not expire while it is restarted again and again.
    if flag(record, 64) and extra(record, 'e') then
      local place = letter == 'r' and group and place_in_group(group, record)
      record = as_enqueued_now(record, now)
      if place then
        redis.call('ZREM', grouped, place)
        redis.call('ZADD', grouped, 0, place_in_group(group, record))
        -- Its group may have waited for a place of this job's kind.
        if line_of(record) then
          enter_round(group)
          wake(1)
        end
      end
    end
  end
  redis.call('HSET', jobs, id, record)
  return 1
end

if key ~= '' then
  -- The job may be done by now, so that its key is free again.
  if redis.call('EXISTS', mark) == 1 then return { 1 } end
  for _, old in ipairs(redis.call('ZRANGE', timed, '-inf', format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 10)) do
    redis.call('ZREM', timed, old)
    local until_us = sub(redis.call('HGET', unique, old) or '', 17)
    if until_us ~= '' and tonumber(until_us) <= now then redis.call('HDEL', unique, old) end
  end
  local holder = redis.call('HGET', unique, key)
  if holder and #holder > 16 and tonumber(sub(holder, 17)) <= now then holder = nil end
  if holder then
    holder = sub(holder, 1, 16)
    local replaced = ARGV[13] == 'keep' and 0 or replace(holder)
    if replaced then return { 2, holder, replaced } end
  end
end
if capacity > 0 then
  local waiting = redis.call('LLEN', ready) + redis.call('ZCARD', ranked) + redis.call('ZCARD', delayed)
    + redis.call('ZCARD', grouped) - tonumber(redis.call('HGET', meta, 'deleted') or 0)
  if waiting + count > capacity then return { 0 } end
end
if key ~= '' then
  local holder = sub(ARGV[15], 1, 16)
  if ARGV[11] == '3' then
    local until_us = now + ARGV[12]
    holder = holder .. digits(until_us)
    redis.call('ZADD', timed, format('%.0f', until_us), key)
  end
  redis.call('HSET', unique, key, holder)
  redis.call('SET', mark, 1, 'PX', ARGV[14])
end

local head = 'J' .. (delay > 0 and 'l' or 'r') .. digits(now + delay)
local stamp = now
if group ~= '' then
  -- The jobs of a group are told apart by the time of enqueueing.
  stamp = math.max(now, tonumber(redis.call('HGET', meta, 'stamp') or 0) + 1)
  redis.call('HSET', meta, 'stamp', format('%.0f', stamp + count))
end
local written, list, ids = {}, {}, {}
local at = digits(stamp)
for i = 15, #ARGV do
  local id = sub(ARGV[i], 1, 16)
  ids[#ids + 1] = id
  if group ~= '' then
    at = digits(stamp)
    stamp = stamp + 1
  end
  written[#written + 1] = id
  written[#written + 1] = head .. at .. ARGV[i]
end
each_piece('HSET', jobs, written)
if keep_events > 0 then event('added', table.concat(ids), kind_of(written[2])) end

local function scored(key, score)
  for _, id in ipairs(ids) do
    list[#list + 1] = score
    list[#list + 1] = id
  end
  each_piece('ZADD', key, list)
end
if delay > 0 then
  scored(delayed, format('%.0f', now + delay))
  announce_first(now + delay)
  return { 1 }
elseif group ~= '' then
  for i = 2, #written, 2 do
    list[#list + 1] = 0
    list[#list + 1] = place_in_group(group, written[i])
  end
  each_piece('ZADD', grouped, list)
  enter_round(group)
elseif level ~= 0 then
  scored(ranked, format('%.0f', now - level * boost))
else
  each_piece('RPUSH', ready, ids)
end
wake(count)
return { 1 }
