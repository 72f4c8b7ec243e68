-- Reads a member's rank and score.
-- KEYS[1] the board  KEYS[2] counter of its submissions  KEYS[3] its different scores  KEYS[4] their counts
-- ARGV[1] order: high, low  ARGV[2] ties: earliest, competition, dense
-- ARGV[3] span of the submissions' numbers  ARGV[4] highest score (earliest)  ARGV[5] member
-- Returns {rank, score} or nil
local high, ties, span = ARGV[1] == 'high', ARGV[2], tonumber(ARGV[3])
local stored = redis.call('ZSCORE', KEYS[1], ARGV[5])
if not stored then
  return nil
end
if ties == 'earliest' then
  local rank = redis.call(high and 'ZREVRANK' or 'ZRANK', KEYS[1], ARGV[5]) + 1
  return {rank, string.format('%.0f', math.floor(tonumber(stored) / span))}
end
local set = ties == 'dense' and KEYS[3] or KEYS[1]
if high then
  return {redis.call('ZCOUNT', set, '(' .. stored, '+inf') + 1, stored}
end
return {redis.call('ZCOUNT', set, '-inf', '(' .. stored) + 1, stored}
