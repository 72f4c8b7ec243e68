-- Extends a claim.
-- KEYS[1] the request
-- ARGV    token, lease in ms
-- Returns 1, or 0 if the claim was lost or is finished
local seen = redis.call('HMGET', KEYS[1], 't', 'r')
if seen[1] ~= ARGV[1] or seen[2] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
