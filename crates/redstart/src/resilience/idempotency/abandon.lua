-- Gives up a claim, so that the request may be tried anew at once. A result that was kept stays.
-- KEYS[1] the request
-- ARGV    token
-- Returns 1 if there was such a claim
local seen = redis.call('HMGET', KEYS[1], 't', 'r')
if seen[1] ~= ARGV[1] or seen[2] then return 0 end
return redis.call('DEL', KEYS[1])
