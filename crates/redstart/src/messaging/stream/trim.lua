-- Removes what every group has acknowledged, up to a bound. Without a group nothing is removed.
--
-- KEYS  1 the stream
-- ARGV  1 keep at least this long, in milliseconds
-- Returns  {how many entries were removed, 1 if there may be more}
if redis.call('EXISTS', KEYS[1]) == 0 then return { 0, 0 } end

local function before(a, b)
  local a_time, a_sequence = string.match(a, '^(%d+)-(%d+)$')
  local b_time, b_sequence = string.match(b, '^(%d+)-(%d+)$')
  if a_time ~= b_time then
    -- Compared as text: a sequence may be larger than a number holds exactly.
    if #a_time ~= #b_time then return #a_time < #b_time end
    return a_time < b_time
  end
  if #a_sequence ~= #b_sequence then return #a_sequence < #b_sequence end
  return a_sequence < b_sequence
end

local low
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  local needed = info['last-delivered-id']
  if info['pending'] > 0 then
    needed = redis.call('XPENDING', KEYS[1], info['name'])[2]
  end
  if not low or before(needed, low) then low = needed end
end
if not low then return { 0, 0 } end
local young = string.format('%.0f-0', math.floor(now() / 1000) - ARGV[1])
if before(young, low) then low = young end
-- Whole nodes of the stream go at once and cheaply, and so many entries at most. What is left of the last node is less
-- than that.
local whole = redis.call('XTRIM', KEYS[1], 'MINID', '~', low, 'LIMIT', 10000)
if whole > 0 then return { whole, 1 } end
return { redis.call('XTRIM', KEYS[1], 'MINID', low), 0 }
