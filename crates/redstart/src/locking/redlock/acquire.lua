-- Takes the lock on this server if it is free, and issues this server's fence token in the same step.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  the last fence token
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3-5  unused here: whether to queue, the waiter's lease in ms, the channel
--          6  for how many seconds after its start the server does not vote
-- Returns  {1, fence token}, or {0, ms until it is worth asking again; -1 if it never is}
--
-- A server that was restarted may have lost a lock that it granted. Until the longest lease that it could have granted
-- has ended, its vote could give two owners a quorum at the same time.
local grace = tonumber(ARGV[6])
if grace > 0 then
  local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  if up <= grace then
    return {0, (grace - up + 1) * 1000}
  end
end
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return {0, redis.call('PTTL', KEYS[1])}
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  local fence = redis.call('GET', KEYS[2])
  if fence then
    return {1, fence}
  end
end
return {1, next_fence(KEYS[2])}
