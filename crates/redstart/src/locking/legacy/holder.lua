-- Reads who holds a lock of the SETNX/GETSET kind, by the server's clock. Changes nothing.
--
-- KEYS     1  the lock (string: the time at which it ends)
--          2  its owner among clients of this library (hash: token, stamp)
--          3  unused here: the last fence token
-- ARGV     1  the channel on which waiters listen
--          2  the unit of the time stamp in us
--          3  the maximum clock error of old clients in us
-- Returns  {the owner's token, or what another client wrote; ms until others can take it (-1 if never); processes that
--          wait}, or nil if it is free or its time stamp has passed
local held = redis.call('GET', KEYS[1])
if not held then
  return false
end
local stamp, left = read_stamp(held), redis.call('PTTL', KEYS[1])
if stamp then
  local passes = stamp * ARGV[2] + ARGV[3] - now()
  if passes < 0 then
    return false
  end
  passes = math.floor(passes / 1000)
  left = left < 0 and passes or math.min(left, passes)
end
local owner = redis.call('HMGET', KEYS[2], 'token', 'stamp')
local waiting = redis.call('PUBSUB', 'SHARDNUMSUB', ARGV[1])
return {owner[2] == held and owner[1] or held, left, waiting[2]}
