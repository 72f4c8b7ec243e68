-- Extends the lease of a run. After now.lua and keep.lua.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  lease in us
--          3  ms to keep a claim whose outcome stays unknown
-- Returns  1, or 0 if the run does not have the request or left a result
local found = redis.call('HMGET', KEYS[1], 't', 'r', 'l')
if found[1] ~= ARGV[1] or found[2] then return 0 end
redis.call('HSET', KEYS[1], 'e', string.format('%.0f', now() + ARGV[2]))
keep(ARGV[3], found[3])
return 1
