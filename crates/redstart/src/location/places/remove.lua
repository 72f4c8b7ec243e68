-- Removes a member.
-- KEYS[1] positions  KEYS[2] deadlines
-- ARGV[1] member
-- Returns 1 if it had a position, 0 if not
local deadline = redis.call('ZSCORE', KEYS[2], ARGV[1])
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if deadline and tonumber(deadline) <= math.floor(now() / 1000) then
  return 0
end
return removed
