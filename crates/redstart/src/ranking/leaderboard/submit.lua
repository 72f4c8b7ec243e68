-- Stores a score by its policy in the period that the server's clock is in, and ranks it.
-- KEYS for each candidate period: the board, its submissions' counter, its different scores, their counts
-- ARGV[1] order: high, low  ARGV[2] ties: earliest, competition, dense
-- ARGV[3] span of the submissions' numbers (a power of two)  ARGV[4] highest score (earliest)
-- ARGV[5] policy: best, last, sum  ARGV[6] member  ARGV[7] score
-- ARGV[8..] for each candidate: start, end (0: none), expiry (0: none), all in ms since the epoch
-- Returns {'placed', rank, score, previous or nil} | {'closed', 0, '0', nil} | {'range', 0, '0', nil}
local high, ties = ARGV[1] == 'high', ARGV[2]
local span, max_points = tonumber(ARGV[3]), tonumber(ARGV[4])
local member, given = ARGV[6], tonumber(ARGV[7])

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local chosen, expiry
for i = 0, #KEYS / 4 - 1 do
  local start, finish = tonumber(ARGV[8 + i * 3]), tonumber(ARGV[9 + i * 3])
  if now >= start and (finish == 0 or now < finish) then
    chosen, expiry = i * 4, ARGV[10 + i * 3]
    break
  end
end
if not chosen then
  return {'closed', 0, '0', false}
end
local board, seq, scores, counts = KEYS[chosen + 1], KEYS[chosen + 2], KEYS[chosen + 3], KEYS[chosen + 4]

-- With ties by time the stored number is points * span + place among the submissions.
local function points(stored)
  if ties == 'earliest' then
    return math.floor(stored / span)
  end
  return stored
end

local function text(number)
  return string.format('%.17g', number)
end

local stored = tonumber(redis.call('ZSCORE', board, member) or nil)
local previous = stored and points(stored)
local score = given
if previous then
  if ARGV[5] == 'sum' then
    score = previous + given
  elseif ARGV[5] == 'best' then
    score = high and math.max(previous, given) or (not high and math.min(previous, given))
  end
end
if score ~= score or score == math.huge or score == -math.huge then
  return {'range', 0, '0', false}
end
if ties == 'earliest' and (score < 0 or score > max_points) then
  return {'range', 0, '0', false}
end

local function expire(key)
  if expiry ~= '0' then
    redis.call('PEXPIREAT', key, expiry)
  end
end

if score ~= previous then
  local new = score
  if ties == 'earliest' then
    local place = math.min(redis.call('INCR', seq) - 1, span - 1)
    expire(seq)
    new = score * span + (high and span - 1 - place or place)
    stored = new
    redis.call('ZADD', board, string.format('%.0f', new), member)
  else
    stored = new
    redis.call('ZADD', board, text(new), member)
  end
  if ties == 'dense' then
    if previous and redis.call('HINCRBY', counts, text(previous), -1) <= 0 then
      redis.call('HDEL', counts, text(previous))
      redis.call('ZREM', scores, text(previous))
    end
    if redis.call('HINCRBY', counts, text(score), 1) == 1 then
      redis.call('ZADD', scores, text(score), text(score))
    end
    expire(scores)
    expire(counts)
  end
  expire(board)
end

local rank
if ties == 'earliest' then
  rank = redis.call(high and 'ZREVRANK' or 'ZRANK', board, member) + 1
else
  local set = ties == 'dense' and scores or board
  if high then
    rank = redis.call('ZCOUNT', set, '(' .. text(score), '+inf') + 1
  else
    rank = redis.call('ZCOUNT', set, '-inf', '(' .. text(score)) + 1
  end
end
return {'placed', rank, text(score), previous and text(previous) or false}
