-- Removes a member from the board.
-- KEYS[1] the board  KEYS[2] counter of its submissions  KEYS[3] its different scores  KEYS[4] their counts
-- ARGV[1] order  ARGV[2] ties: earliest, competition, dense  ARGV[3] span  ARGV[4] highest score  ARGV[5] member
-- Returns 1 if it was on the board, else 0
local stored = redis.call('ZSCORE', KEYS[1], ARGV[5])
if not stored then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[5])
if ARGV[2] == 'dense' then
  local score = string.format('%.17g', tonumber(stored))
  if redis.call('HINCRBY', KEYS[4], score, -1) <= 0 then
    redis.call('HDEL', KEYS[4], score)
    redis.call('ZREM', KEYS[3], score)
  end
end
return 1
