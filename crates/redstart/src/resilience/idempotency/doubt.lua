-- Marks that nobody knows whether a request was carried out. It stays claimed. After now.lua and
-- keep.lua.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  ms to keep the mark
-- Returns  1, or 0 if the run does not have the request or left a result
local found = redis.call('HMGET', KEYS[1], 't', 'r', 'l')
if found[1] ~= ARGV[1] or found[2] then return 0 end
redis.call('HSET', KEYS[1], 'u', 1)
keep(ARGV[2], found[3])
return 1
