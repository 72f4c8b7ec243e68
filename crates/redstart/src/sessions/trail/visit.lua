-- Adds a page to the trail of a visit.
--
-- KEYS  1 the trail, a list
-- ARGV  1 how many pages to keep  2 how long the visit lasts from now on, in milliseconds  3 the page
-- Returns  how many pages the trail has
local length = redis.call('RPUSH', KEYS[1], ARGV[3])
if length > tonumber(ARGV[1]) then
    redis.call('LTRIM', KEYS[1], -ARGV[1], -1)
    length = tonumber(ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return length
