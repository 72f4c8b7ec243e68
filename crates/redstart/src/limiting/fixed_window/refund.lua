-- Gives back what a grant took, if its window is still the current one.
-- KEYS[1] the counter
-- ARGV    cost, window in ms, end of the grant's window
-- Returns the credited units
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, till = string.match(value, '^(%d+) (%d+)$')
if till ~= ARGV[3] or now >= tonumber(till) then return 0 end
local credit = math.min(tonumber(ARGV[1]), tonumber(count))
redis.call('SET', KEYS[1], string.format('%.0f %s', count - credit, till), 'KEEPTTL')
return credit
