-- Reads the state of a lock of the SETNX/GETSET kind by the server's clock. Changes nothing.
--
-- KEYS     1  the lock (string: the time at which it ends)
-- ARGV     1  the unit of the time stamp in us
--          2  the maximum clock error of old clients in us
-- Returns  {state, ms}: 'free' 0, 'held' ms left, 'expired' ms since then, 'foreign' 0
local held = redis.call('GET', KEYS[1])
if not held then
  return {'free', 0}
end
local stamp = read_stamp(held)
if not stamp then
  return {'foreign', 0}
end
local left = stamp * ARGV[1] + ARGV[2] - now()
return {left < 0 and 'expired' or 'held', math.floor(math.abs(left) / 1000)}
