-- Stores a score by its policy in the period that the server's clock is in, and ranks it.
-- KEYS for each candidate period: the board; with ties by time its submissions' counter; with dense ones that
--   counter (unused), its different scores and their counts
-- ARGV[1] order: high, low  ARGV[2] ties: earliest, competition, dense
-- ARGV[3] span of the submissions' numbers (a power of two)  ARGV[4] highest score (earliest)
-- ARGV[5] policy: best, last, sum  ARGV[6] member  ARGV[7] score
-- ARGV[8..] for each candidate: start, end, expiry (0: none), all in ms since the epoch; nothing for a board
--   without periods, which needs no clock
-- Returns 'rank score previous' ('-' for none), in one text because that is cheap to read; or 'closed', 'range'
local call, high, ties = redis.call, ARGV[1] == 'high', ARGV[2]
local policy, member, text = ARGV[5], ARGV[6], ARGV[7]

local at, expiry = 1, '0'
if ARGV[8] then
  local width = ties == 'dense' and 4 or ties == 'earliest' and 2 or 1
  local time = call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  at = nil
  for i = 0, #KEYS / width - 1 do
    if now >= tonumber(ARGV[8 + i * 3]) and now < tonumber(ARGV[9 + i * 3]) then
      at, expiry = i * width + 1, ARGV[10 + i * 3]
      break
    end
  end
  if not at then
    return 'closed'
  end
end
local board = KEYS[at]

-- `text` is the score as the server writes it, so that numbers are turned into text only where they are new.
local before = call('ZSCORE', board, member)
local score, previous = tonumber(text), before and tonumber(before)
if before and ties ~= 'competition' then
  if ties == 'earliest' then
    -- With ties by time the stored number is points * span + place among the submissions.
    previous = math.floor(previous / ARGV[3])
  end
  -- Servers differ in how they write a number; counts are kept under one text for each.
  before = string.format('%.17g', previous)
end
if previous then
  if policy == 'sum' then
    score = previous + score
    text = string.format('%.17g', score)
  elseif policy == 'best' and (high and previous >= score or not high and previous <= score) then
    score, text = previous, before
  end
end
if score ~= score or score == math.huge or score == -math.huge then
  return 'range'
end
if ties == 'earliest' and (score < 0 or score > tonumber(ARGV[4])) then
  return 'range'
end

if score ~= previous then
  if ties == 'earliest' then
    local span = tonumber(ARGV[3])
    local place = math.min(call('INCR', KEYS[at + 1]) - 1, span - 1)
    local new = score * span + (high and span - 1 - place or place)
    call('ZADD', board, string.format('%.0f', new), member)
  else
    call('ZADD', board, text, member)
  end
  if ties == 'dense' then
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
    if ties == 'earliest' then
      call('PEXPIREAT', KEYS[at + 1], expiry)
    elseif ties == 'dense' then
      call('PEXPIREAT', KEYS[at + 2], expiry)
      call('PEXPIREAT', KEYS[at + 3], expiry)
    end
  end
end

local rank
if ties == 'earliest' then
  rank = call(high and 'ZREVRANK' or 'ZRANK', board, member) + 1
else
  local set = ties == 'dense' and KEYS[at + 2] or board
  if high then
    rank = call('ZCOUNT', set, '(' .. text, '+inf') + 1
  else
    rank = call('ZCOUNT', set, '-inf', '(' .. text) + 1
  end
end
-- A rank has fewer than the 14 digits that a number keeps here.
return rank .. ' ' .. text .. ' ' .. (before or '-')
