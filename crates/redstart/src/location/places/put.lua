-- Sets a member's position and its deadline, and removes some of the stale ones.
-- KEYS[1] positions  KEYS[2] deadlines
-- ARGV[1] member  ARGV[2] longitude  ARGV[3] latitude  ARGV[4] lifetime in ms, 0 for no end
-- ARGV[5] any; or known, to change only members that have a position
-- Returns 1 if the member had no position, 0 if it had one, -1 if it had none and nothing was written
local time = math.floor(now() / 1000)
local member, life = ARGV[1], tonumber(ARGV[4])

local deadline = redis.call('ZSCORE', KEYS[2], member)
local known = redis.call('ZSCORE', KEYS[1], member) and not (deadline and tonumber(deadline) <= time)
local stale = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', time, 'LIMIT', 0, 100)
if #stale > 0 then
  redis.call('ZREM', KEYS[1], unpack(stale))
  redis.call('ZREM', KEYS[2], unpack(stale))
end
if ARGV[5] == 'known' and not known then
  return -1
end

redis.call('GEOADD', KEYS[1], ARGV[2], ARGV[3], member)
if life > 0 then
  redis.call('ZADD', KEYS[2], string.format('%.0f', time + life), member)
else
  redis.call('ZREM', KEYS[2], member)
end
-- When every member has a deadline, the keys expire with the last of them.
if redis.call('ZCARD', KEYS[1]) == redis.call('ZCARD', KEYS[2]) then
  local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
  last = string.format('%.0f', tonumber(last))
  redis.call('PEXPIREAT', KEYS[1], last)
  redis.call('PEXPIREAT', KEYS[2], last)
else
  redis.call('PERSIST', KEYS[1])
  redis.call('PERSIST', KEYS[2])
end
return known and 0 or 1
