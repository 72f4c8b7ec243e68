-- Keeps the result of a run, unless another run has taken the request over. After now.lua and keep.lua.
--
-- KEYS     1  the request
-- ARGV     1  token of the run
--          2  fingerprint
--          3  result
--          4  ms to keep it
-- Returns  1, or 0 if another run has the request
local found = redis.call('HMGET', KEYS[1], 't', 'l', 'x')
local token, last, over = unpack(found, 1, 3)
local time = now() / 1000
-- A record that is gone (evicted, or its time is over) belongs to nobody: the result is written anyway.
if token and token ~= ARGV[1] and not (over and tonumber(over) <= time) then return 0 end
if last and tonumber(last) <= time + ARGV[4] then
  -- Claims that arrive late get the result for as long as the marks of runs that were called off would last.
  last = false
end
if last then
  redis.call('HDEL', KEYS[1], 'e', 'u')
else
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'f', ARGV[2], 't', ARGV[1], 'r', ARGV[3])
keep(ARGV[4], last)
return 1
