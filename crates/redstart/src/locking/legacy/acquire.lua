-- Takes a lock of the SETNX/GETSET kind if it is free or its time stamp has passed by the server's clock.
--
-- KEYS     1  the old lock (string: the time at which it ends)
--          2  who of the new clients has it (hash: token, stamp)
--          3  the last fence token issued
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3-5  unused here: whether to queue, the waiter's lease, the channel
--          6  the unit of the time stamp in us
--          7  how far the clocks of old clients may be off, in us
-- Returns  {1, fence token}, or {0, ms until its time stamp passes; -1 if it is no time stamp}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit, skew = tonumber(ARGV[6]), tonumber(ARGV[7])
local held = redis.call('GET', KEYS[1])
if held then
  local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
  if owner[1] ~= ARGV[1] or owner[2] ~= held then
    local stamp = #held <= 20 and tonumber(string.match(held, '^%d+%.?%d*$'))
    if not stamp then
      return {0, redis.call('PTTL', KEYS[1])}
    end
    local left = stamp * unit + skew - now
    if left >= 0 then
      return {0, math.floor(left / 1000) + 1}
    end
  end
end
-- Old clients write the end of their lease plus one, and so do we.
local stamp = math.floor((now + ARGV[2] * 1000 + skew) / unit) + 1
local text = string.format('%.0f', stamp)
local gone = string.format('%.0f', math.ceil((stamp + 1) * unit / 1000))
redis.call('SET', KEYS[1], text, 'PXAT', gone)
redis.call('HSET', KEYS[2], 'token', ARGV[1], 'stamp', text)
redis.call('PEXPIREAT', KEYS[2], gone)
return {1, next_fence(KEYS[3])}
