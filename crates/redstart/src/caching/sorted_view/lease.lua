-- Asks for the right to build a view.
--
-- KEYS[1] the mark of a built view
-- KEYS[2] the lease
-- ARGV[1] a new token
-- ARGV[2] how long the lease lasts, ms
--
-- Returns 0 build it, -1 it is built, or how many ms another client may still build it
if redis.call('EXISTS', KEYS[1]) == 1 then
  return -1
end
local held = redis.call('GET', KEYS[2])
if held and held ~= ARGV[1] then
  return math.max(1, redis.call('PTTL', KEYS[2]))
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 0
