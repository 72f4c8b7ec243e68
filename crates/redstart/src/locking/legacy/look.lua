-- Says what an old lock is by the server's clock, and on request gives it the TTL that it never had.
--
-- KEYS     1  the old lock (string: the time at which it ends)
-- ARGV     1  the unit of the time stamp in us
--          2  how far the clocks of old clients may be off, in us
--          3  'look', or 'migrate' to put its end into its TTL and to delete it if that has passed
-- Returns  {state, ms}: 'free' 0, 'held' ms left, 'expired' ms since, 'foreign' 0
local held = redis.call('GET', KEYS[1])
if not held then
  return {'free', 0}
end
local stamp = #held <= 20 and tonumber(string.match(held, '^%d+%.?%d*$'))
if not stamp then
  return {'foreign', 0}
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ends = stamp * tonumber(ARGV[1]) + tonumber(ARGV[2])
local state = ends < now and 'expired' or 'held'
if ARGV[3] == 'migrate' then
  if state == 'expired' then
    redis.call('DEL', KEYS[1])
  else
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(ends / 1000) + 1))
  end
end
return {state, math.floor(math.abs(ends - now) / 1000)}
