-- Gives back what a grant took, if its window is still the current one. After now.lua.
--
-- KEYS     1  the counter
-- ARGV     1  cost
--          2  window in ms, not used here
--          3  end of the grant's window in ms
-- Returns  the credited units
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local count, till = string.match(value, '^(%d+) (%d+)$')
if till ~= ARGV[3] or now() >= tonumber(till) * 1000 then return 0 end
local credit = math.min(tonumber(ARGV[1]), tonumber(count))
redis.call('SET', KEYS[1], string.format('%.0f %s', count - credit, till), 'KEEPTTL')
return credit
