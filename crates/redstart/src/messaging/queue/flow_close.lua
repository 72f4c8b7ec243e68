-- A flow that is added in steps gets more time or, when it is complete, as long as it takes.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6 more time in microseconds (0 = it is complete)  7... ids of parents
-- Returns  how many of them were buried because it took too long
local more, late = tonumber(ARGV[6]), 0
local limit = more > 0 and format('%.0f', now() + more) or '+inf'
for i = 7, #ARGV do
  redis.call('ZADD', parents, 'XX', limit, ARGV[i])
  if redis.call('HGET', details, ARGV[i] .. 'x') == INCOMPLETE then late = late + 1 end
end
return late
