-- Returns a permit and wakes the waiters.
--
-- KEYS     1  the permits (sorted set: owner's token -> end of its lease in us)
-- ARGV     1  the owner's token
--          2  the channel on which waiters listen
--          3  unused here: the number of permits
-- Returns  1 if the lease still ran, else 0
local ran = leases.drop(KEYS[1], ARGV[1], now())
if ran ~= nil then
  redis.call('SPUBLISH', ARGV[2], '')
end
return ran and 1 or 0
