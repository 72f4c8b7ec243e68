-- Counts the members of a shard before a point in the order of all members; the point's member need not be
-- in this shard. Members with the point's score stand in order of their names, so its name is searched for by
-- halving.
-- KEYS[1] the shard
-- ARGV[1] order: high, low  ARGV[2] the point's score  ARGV[3] its member
-- Returns how many
local score, member = ARGV[2], ARGV[3]

local first = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
local same = redis.call('ZCOUNT', KEYS[1], score, score)
local low, high = 0, same
local met = 0
while low < high do
  local middle = math.floor((low + high) / 2)
  local other = redis.call('ZRANGE', KEYS[1], first + middle, first + middle)[1]
  if smaller(other, member) then
    low = middle + 1
  else
    if other == member then
      met = 1
    end
    high = middle
  end
end
-- `low` of those with the same score have a smaller name.
if ARGV[1] == 'low' then
  return first + low
end
local better = redis.call('ZCOUNT', KEYS[1], '(' .. score, '+inf')
return better + same - low - met
