-- Gives a session another token; the old one is worth nothing from then on. A session that a logout everywhere
-- is about to end does not escape it this way.
--
-- KEYS  1 the session under its old name  2 under its new  3 the index of its user  4 logout everywhere
-- ARGV  1 the old name in the index  2 the new one
-- Returns  1 rotated, 0 the session is gone
local created = redis.call('HGET', KEYS[1], 'created')
if not created then
  redis.call('ZREM', KEYS[3], ARGV[1])
  return 0
end
local out = redis.call('GET', KEYS[4])
if out and tonumber(created) <= tonumber(out) then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
  return 0
end
local ends = redis.call('ZSCORE', KEYS[3], ARGV[1])
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZADD', KEYS[3], ends or string.format('%.0f', redis.call('PEXPIRETIME', KEYS[2]) * 1000), ARGV[2])
return 1
