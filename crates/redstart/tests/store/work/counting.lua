-- [activity.count] A week of a million users each.
local keys = { 'combined' }
for day = 1, 7 do
  call('SETBIT', 'day-' .. day, 1000000, 1)
  keys[#keys + 1] = 'day-' .. day
end
return keys, { 'OR' }

-- [activity.mark] 100 users.
call('SETBIT', 'day', 1000000, 1)
local args = { text(FUTURE / 1000) }
for i = 1, 100 do args[#args + 1] = i * 1000 end
return { 'day' }, args

-- [check_ins.mark]
return { 'year' }, { 17, 1, text(FUTURE / 1000) }

-- [counter.ack]
call('HSET', 'drained', 'id', 'one', 'count', 17)
return { 'drained' }, { 'one' }

-- [counter.add]
return { 'count' }, { 1, 60000 }

-- [counter.drain]
call('SET', 'count', 17)
return { 'count', 'drained' }, { 'one' }

-- [counter.take]
call('SET', 'count', 17)
return { 'count' }, {}

-- [uniques.add] 100 visitors.
many('PFADD', 'day', 1, name)
local args = { text(FUTURE / 1000) }
for i = 1, 100 do args[#args + 1] = name(i) end
return { 'day' }, args

-- [uniques.count] at most 1300: a month.
local keys = {}
for day = 1, 31 do
  call('PFADD', 'day-' .. day, unpack({ name(day), name(day + 1) }))
  keys[#keys + 1] = 'day-' .. day
end
return keys, {}

-- [uniques.roll_up] at most 1500: a month.
local keys = { 'building', 'month' }
for day = 1, 31 do
  call('PFADD', 'day-' .. day, name(day))
  keys[#keys + 1] = 'day-' .. day
end
return keys, { text(FUTURE / 1000) }

-- [windowed.add] at most 4000: the first count of a window, which removes those that are no longer kept.
hfill('windows', 1, function(i) return text(math.floor(at / 1000000) - i * 60) end)
call('HSET', 'windows', 'window', 60, 'retain', N)
return { 'windows' }, { 1, 60, N }

-- [windowed.series] at most 8000: all windows are read.
hfill('windows', 1, function(i) return text(i * 60) end)
call('HSET', 'windows', 'window', 60, 'retain', N)
return { 'windows' }, {}
