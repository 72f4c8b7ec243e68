-- Takes a lock of the SETNX/GETSET kind if it is free or its time stamp has passed by the server's clock.
--
-- KEYS     1  the lock (string: the time at which it ends)
--          2  its owner among clients of this library (hash: token, stamp)
--          3  the last fence token
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3-5  unused here: whether to queue, the waiter's lease in ms, the channel
--          6  the unit of the time stamp in us
--          7  the maximum clock error of old clients in us
-- Returns  {1, fence token}, or {0, ms until its time stamp passes; -1 if it is not a time stamp and has no TTL}
local at = now()
local unit, skew = tonumber(ARGV[6]), tonumber(ARGV[7])
local held = redis.call('GET', KEYS[1])
if held then
  local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
  if owner[1] ~= ARGV[1] or owner[2] ~= held then
    local stamp = read_stamp(held)
    if not stamp then
      return {0, redis.call('PTTL', KEYS[1])}
    end
    local left = stamp * unit + skew - at
    if left >= 0 then
      return {0, math.floor(left / 1000) + 1}
    end
  end
end
-- Old clients write the end of their lease plus one, and so does this.
local stamp = math.floor((at + ARGV[2] * 1000 + skew) / unit) + 1
local text, expiry = stamp_text(stamp), stamp_expiry(stamp, unit)
redis.call('SET', KEYS[1], text, 'PXAT', expiry)
redis.call('HSET', KEYS[2], 'token', ARGV[1], 'stamp', text)
redis.call('PEXPIREAT', KEYS[2], expiry)
return {1, next_fence(KEYS[3])}
