-- Takes members. The sign is removed only when the set is found empty: a waiter misses nothing, whatever happens to
-- the others.
--
-- KEYS  1 the set  2 the sign
-- ARGV  1 how many at most
-- Returns  members
local taken = redis.call('SPOP', KEYS[1], ARGV[1])
if #taken == 0 then redis.call('DEL', KEYS[2]) end
return taken
