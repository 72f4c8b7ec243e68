-- Moves the time stamp on, if nobody else has touched it since the owner wrote it.
--
-- KEYS     1  the old lock (string: the time at which it ends)
--          2  who of the new clients has it (hash: token, stamp)
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3  the unit of the time stamp in us
--          4  how far the clocks of old clients may be off, in us
-- Returns  1 if it is the owner's, else 0
--
-- A stamp that changed was written by GETSET of an old client: it either took the lock by its own clock or
-- lost a race and moved the stamp. Nobody can tell which, so the owner must take it as lost.
local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
if owner[1] ~= ARGV[1] or redis.call('GET', KEYS[1]) ~= owner[2] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit = tonumber(ARGV[3])
local stamp = math.floor((now + ARGV[2] * 1000 + tonumber(ARGV[4])) / unit) + 1
if stamp > tonumber(owner[2]) then
  local text = string.format('%.0f', stamp)
  local gone = string.format('%.0f', math.ceil((stamp + 1) * unit / 1000))
  redis.call('SET', KEYS[1], text, 'PXAT', gone)
  redis.call('HSET', KEYS[2], 'stamp', text)
  redis.call('PEXPIREAT', KEYS[2], gone)
end
return 1
