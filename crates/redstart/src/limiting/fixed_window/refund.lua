-- Gives back what a grant took, if its window is still the current one.
--
-- KEYS     1  the counter
-- ARGV     1  cost
--          2  window in ms, not used here
--          3  end of the grant's window in ms
-- Returns  the credited units
local count = tonumber(redis.call('GET', KEYS[1]) or nil)
if not count or redis.call('PTTL', KEYS[1]) <= 0 or redis.call('PEXPIRETIME', KEYS[1]) ~= tonumber(ARGV[3]) then return 0 end
local credit = math.min(tonumber(ARGV[1]), count)
redis.call('DECRBY', KEYS[1], string.format('%.0f', credit))
return credit
