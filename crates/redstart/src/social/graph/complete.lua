-- The last of three steps between two shards: makes a's side equal to b's and removes the intent, if it is still
-- this one.
-- KEYS[1] accounts that a follows  KEYS[2] intents of the shard: pair -> operation and number  KEYS[3] intents by time
-- KEYS[4] numbers seen by a  KEYS[5] the newest thousand follows of a that blocks ended, for an hour: account and number
-- ARGV[1] follow, unfollow or block  ARGV[2] a  ARGV[3] b  ARGV[4] number  ARGV[5] 1 if b's side has the follow
-- ARGV[6] the last number of b's shard
-- Returns 0 if a block refused or cancelled this follow, else 1. Another caller may have completed it, and a later change
-- undone it: what a's side is like now does not tell.
local pair = ARGV[2] .. '\0' .. ARGV[3]
if redis.call('HGET', KEYS[2], pair) == ARGV[1] .. ' ' .. ARGV[4] then
  if ARGV[1] == 'block' then
    -- Follows that b intended before the block reached it were cancelled there; if one of them arrives here after the
    -- block is lifted, it is too late.
    redis.call('ZADD', KEYS[4], 'GT', ARGV[6], ARGV[3])
  else
    if ARGV[5] == '1' then
      redis.call('ZADD', KEYS[1], ARGV[4], ARGV[3])
    else
      redis.call('ZREM', KEYS[1], ARGV[3])
      if ARGV[1] == 'follow' then
        -- Its caller may be another one.
        redis.call('ZADD', KEYS[5], ARGV[4], ARGV[3] .. '\0' .. ARGV[4])
        redis.call('ZREMRANGEBYRANK', KEYS[5], 0, -1001)
        redis.call('EXPIRE', KEYS[5], 3600)
      end
    end
  end
  redis.call('HDEL', KEYS[2], pair)
  redis.call('ZREM', KEYS[3], pair)
end
return redis.call('ZSCORE', KEYS[5], ARGV[3] .. '\0' .. ARGV[4]) and 0 or 1
