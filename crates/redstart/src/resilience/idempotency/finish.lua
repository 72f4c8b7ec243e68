-- Keeps the result of a run, unless another run has taken the request over.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  fingerprint
--          3  result
--          4  ms to keep it
-- Returns  1, or 0 if another run has the request
local token = redis.call('HGET', KEYS[1], 't')
-- A record that is gone (evicted, or its time was over) belongs to nobody: the result is written anyway.
if token and token ~= ARGV[1] then return 0 end
-- Claims that arrive late get the result from now on, so the marks of runs that were called off go too.
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'f', ARGV[2], 't', ARGV[1], 'r', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
