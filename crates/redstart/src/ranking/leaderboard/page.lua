-- Lists entries with their ranks: by offset, behind a point, or a member and its neighbours.
-- KEYS[1] the board  KEYS[2] counter of its submissions  KEYS[3] its different scores  KEYS[4] their counts
-- ARGV[1] order: high, low  ARGV[2] ties: earliest, competition, dense
-- ARGV[3] span of the submissions' numbers  ARGV[4] highest score (earliest)
-- ARGV[5] slice: ARGV[6] first offset, ARGV[7] last offset, from 0
-- ARGV[5] after: ARGV[6] stored score and ARGV[7] member of the last entry before the page, '' for the first page;
--         ARGV[8] how many
-- ARGV[5] around: ARGV[6] member, ARGV[7] neighbours on each side
-- Returns {{rank, member, score}, ...}; after: {{rank, member, score, stored score}, ...}
local high, ties, span = ARGV[1] == 'high', ARGV[2], tonumber(ARGV[3])
local board, mode = KEYS[1], ARGV[5]
local first, last
if mode == 'slice' then
  first, last = tonumber(ARGV[6]), tonumber(ARGV[7])
elseif mode == 'after' then
  first = 0
  if ARGV[6] ~= '' then
    local before, met = position(board, high, ARGV[6], ARGV[7])
    first = before + met
  end
  last = first + tonumber(ARGV[8]) - 1
else
  local place = redis.call(high and 'ZREVRANK' or 'ZRANK', board, ARGV[6])
  if not place then
    return {}
  end
  first, last = math.max(place - tonumber(ARGV[7]), 0), place + tonumber(ARGV[7])
end
local rows = redis.call(high and 'ZREVRANGE' or 'ZRANGE', board,
  string.format('%.0f', first), string.format('%.0f', last), 'WITHSCORES')

local function better(set, score)
  if high then
    return redis.call('ZCOUNT', set, '(' .. score, '+inf')
  end
  return redis.call('ZCOUNT', set, '-inf', '(' .. score)
end

local entries, rank, above = {}, nil, nil
for i = 1, #rows, 2 do
  local member, stored = rows[i], rows[i + 1]
  local place, score = first + (i + 1) / 2, stored
  if ties == 'earliest' then
    rank = place
    score = string.format('%.0f', math.floor(tonumber(stored) / span))
  elseif rank == nil then
    rank = better(ties == 'dense' and KEYS[3] or board, score) + 1
  elseif score ~= above then
    rank = ties == 'dense' and rank + 1 or place
  end
  above = score
  entries[#entries + 1] = {rank, member, score, mode == 'after' and stored or nil}
end
return entries
