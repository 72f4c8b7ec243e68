-- Takes members. The sign goes only together with the sight of the empty set: whoever waits for it misses
-- nothing, whatever happens to the others.
--
-- KEYS  1 the set  2 the sign
-- ARGV  1 how many at most
-- Returns  members
local taken = redis.call('SPOP', KEYS[1], ARGV[1])
if #taken == 0 then redis.call('DEL', KEYS[2]) end
return taken
