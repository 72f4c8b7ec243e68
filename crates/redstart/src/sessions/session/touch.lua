-- Reads a session and renews its idle timeout, never beyond the absolute one. A patch comes with it, if any.
-- A session that is gone stays gone.
--
-- KEYS  1 the session  2 the index of its user
-- ARGV  1 idle timeout  2 slack: a renewal within it may be left out (both in microseconds)
--       3 the session's name in the index  4 number of fields to set, then fields and values
--         then the fields to delete
-- Returns  false, or its fields and values and then the microseconds left; after a patch only these
local fields = redis.call('HMGET', KEYS[1], 'until', 'ends')
if not fields[1] then
  redis.call('ZREM', KEYS[2], ARGV[3])
  return false
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local absolute = tonumber(fields[1])
local before = tonumber(fields[2] or 0)
local ends = math.min(now + ARGV[1], absolute)
if ends <= now or (before > 0 and before <= now) then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[3])
  return false
end
if ends - before > tonumber(ARGV[2]) then
  local text = string.format('%.0f', ends)
  redis.call('HSET', KEYS[1], 'ends', text)
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(ends / 1000)))
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
  redis.call('ZADD', KEYS[2], text, ARGV[3])
else
  ends = before
end
local left = string.format('%.0f', ends - now)
if not ARGV[4] then
  local all = redis.call('HGETALL', KEYS[1])
  all[#all + 1] = left
  return all
end
local last = 4 + 2 * tonumber(ARGV[4])
if last > 4 then redis.call('HSET', KEYS[1], unpack(ARGV, 5, last)) end
if last < #ARGV then redis.call('HDEL', KEYS[1], unpack(ARGV, last + 1)) end
return { left }
