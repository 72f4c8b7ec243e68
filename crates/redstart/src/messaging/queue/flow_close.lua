-- A flow that was added in steps is complete: its parents may wait as long as it takes.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6... ids of parents
-- Returns  1
for i = 6, #ARGV do redis.call('ZADD', parents, 'XX', '+inf', ARGV[i]) end
return 1
