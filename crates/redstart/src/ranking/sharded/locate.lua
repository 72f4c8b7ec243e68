-- Counts the members of a shard before a point in the order of all members. The point's member need not be in this
-- shard.
-- KEYS[1] the shard
-- ARGV[1] order: high, low  ARGV[2] the point's score  ARGV[3] its member
-- Returns {how many, 1 if the point itself is in this shard else 0}
local before, met = position(KEYS[1], ARGV[1] == 'high', ARGV[2], ARGV[3])
return {before, met}
