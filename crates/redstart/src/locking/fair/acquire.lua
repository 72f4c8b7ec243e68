-- Takes the lock if it is free and the caller is first in line, and issues the fence token; otherwise gives
-- the caller a place at the end of the line, or keeps the one it has.
--
-- KEYS     1  the lock (string: the owner's token)
--          2  the line (sorted set: token -> its number)
--          3  the places' leases (sorted set: token -> end of its lease in us)
--          4  the last fence token issued
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3  1 to stand in line, 0 not to
--          4  the lease of a place in ms
--          5  the channel on which waiters listen
-- Returns  {1, fence token}, or {0, ms until it is worth asking again}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function until_ms(us)
  return math.ceil((tonumber(us) - now) / 1000)
end

-- Who stopped asking is dead or gone: its place is free.
local dead = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now))
for _, token in ipairs(dead) do
  redis.call('ZREM', KEYS[2], token)
  redis.call('ZREM', KEYS[3], token)
end

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  -- The same request again, because its first answer was lost.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  local fence = redis.call('GET', KEYS[4])
  return {1, fence or next_fence(KEYS[4])}
end

local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if not holder and (not head or head == ARGV[1]) then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, next_fence(KEYS[4])}
end

if ARGV[3] == '1' then
  if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
    local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
    local number = math.max(now, tonumber(last[2] or '0') + 1)
    redis.call('ZADD', KEYS[2], string.format('%.0f', number), ARGV[1])
  end
  redis.call('ZADD', KEYS[3], string.format('%.0f', now + ARGV[4] * 1000), ARGV[1])
  local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')
  local ends = string.format('%.0f', math.ceil(tonumber(last[2]) / 1000))
  redis.call('PEXPIREAT', KEYS[2], ends)
  redis.call('PEXPIREAT', KEYS[3], ends)
end
if holder then
  return {0, redis.call('PTTL', KEYS[1])}
end
if #dead > 0 then
  -- The one who was woken is dead; its successor does not know yet.
  redis.call('SPUBLISH', ARGV[5], head)
end
return {0, until_ms(redis.call('ZSCORE', KEYS[3], head) or now)}
