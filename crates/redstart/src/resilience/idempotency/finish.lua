-- Keeps the result of a claimed request.
-- KEYS[1] the request
-- ARGV    token, result, ms to keep it
-- Returns 1, or 0 if the claim was lost
if redis.call('HGET', KEYS[1], 't') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'r', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
