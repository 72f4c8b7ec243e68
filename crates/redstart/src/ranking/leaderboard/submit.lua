-- Stores a score by its policy in the period that the server's clock is in, and ranks it.
-- KEYS for each candidate period: the board; with ties by time also the counter of its submissions; with dense ties
--   also that counter (unused), its different scores and their counts
-- ARGV[1] one letter each for the order (high, low), the ties (competition, earliest, dense) and the policy (best,
--   last, sum), in one argument because each argument costs time  ARGV[2] member  ARGV[3] score
-- With ties by time  ARGV[4] span of the submissions' numbers (a power of two)  ARGV[5] highest score
-- Then for each candidate: start, end, expiry (0: none), all in ms since the epoch; nothing for a board without
--   periods, which needs no clock
-- Returns 'rank score previous' ('-' for none), in one string because that is cheap to read; or 'closed', 'range'
local call, member, text = redis.call, ARGV[2], ARGV[3]
local order, tie, policy = string.byte(ARGV[1], 1, 3)
local high, earliest, dense = order == 104, tie == 101, tie == 100 -- h, e, d
local best, sum = policy == 98, policy == 115 -- b, s

local at, expiry = 1, '0'
local times = earliest and 6 or 4
if ARGV[times] then
  local width = dense and 4 or earliest and 2 or 1
  local time = call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  at = nil
  for i = 0, #KEYS / width - 1 do
    local from = times + i * 3
    if now >= tonumber(ARGV[from]) and now < tonumber(ARGV[from + 1]) then
      at, expiry = i * width + 1, ARGV[from + 2]
      break
    end
  end
  if not at then
    return 'closed'
  end
end
local board = KEYS[at]

-- `text` is the score as the server writes it, so that only new numbers have to be formatted.
local before = call('ZSCORE', board, member)
local score, previous = tonumber(text), before and tonumber(before)
if before and (earliest or dense) then
  if earliest then
    -- With ties by time the stored number is points * span + place among the submissions.
    previous = math.floor(previous / ARGV[4])
  end
  -- Servers differ in how they write a number; counts are kept under one spelling.
  before = string.format('%.17g', previous)
end
if previous then
  if sum then
    score = previous + score
    text = string.format('%.17g', score)
  elseif best and (high and previous >= score or not high and previous <= score) then
    score, text = previous, before
  end
end
if score ~= score or score == math.huge or score == -math.huge then
  return 'range'
end
if earliest and (score < 0 or score > tonumber(ARGV[5])) then
  return 'range'
end

if score ~= previous then
  if earliest then
    local span = tonumber(ARGV[4])
    local place = math.min(call('INCR', KEYS[at + 1]) - 1, span - 1)
    local new = score * span + (high and span - 1 - place or place)
    call('ZADD', board, string.format('%.0f', new), member)
  else
    call('ZADD', board, text, member)
  end
  if dense then
    local scores, counts = KEYS[at + 2], KEYS[at + 3]
    if previous and call('HINCRBY', counts, before, -1) <= 0 then
      call('HDEL', counts, before)
      call('ZREM', scores, before)
    end
    text = string.format('%.17g', score)
    if call('HINCRBY', counts, text, 1) == 1 then
      call('ZADD', scores, text, text)
    end
  end
  if expiry ~= '0' then
    call('PEXPIREAT', board, expiry)
    if earliest then
      call('PEXPIREAT', KEYS[at + 1], expiry)
    elseif dense then
      call('PEXPIREAT', KEYS[at + 2], expiry)
      call('PEXPIREAT', KEYS[at + 3], expiry)
    end
  end
end

local rank
if earliest then
  rank = call(high and 'ZREVRANK' or 'ZRANK', board, member) + 1
else
  local set = dense and KEYS[at + 2] or board
  if high then
    rank = call('ZCOUNT', set, '(' .. text, '+inf') + 1
  else
    rank = call('ZCOUNT', set, '-inf', '(' .. text) + 1
  end
end
-- A rank has fewer than the 14 digits that a number keeps here.
return rank .. ' ' .. text .. ' ' .. (before or '-')
