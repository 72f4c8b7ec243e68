-- Lists members of a shard by their place in it.
-- KEYS[1] the shard
-- ARGV[1] order: high, low  ARGV[2] first place  ARGV[3] last place, from 0
-- Returns {{member, score}, ...}
local rows = redis.call(ARGV[1] == 'high' and 'ZREVRANGE' or 'ZRANGE', KEYS[1], ARGV[2], ARGV[3], 'WITHSCORES')
local slice = {}
for i = 1, #rows, 2 do
  slice[#slice + 1] = {rows[i], rows[i + 1]}
end
return slice
