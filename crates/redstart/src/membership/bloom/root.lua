-- Replaces the filter's root if it is what the caller expects.
-- KEYS[1] the root: phase, current, next
-- ARGV[1..3] the expected phase, current and next, '' for none  ARGV[4..6] the new ones
-- Returns phase, current and next as they are afterwards
local row = redis.call('HMGET', KEYS[1], 'phase', 'current', 'next')
local phase, current, following = row[1] or '', row[2] or '', row[3] or ''
if phase ~= ARGV[1] or current ~= ARGV[2] or following ~= ARGV[3] then
  return {phase, current, following}
end
redis.call('HSET', KEYS[1], 'phase', ARGV[4], 'current', ARGV[5])
if ARGV[6] == '' then
  redis.call('HDEL', KEYS[1], 'next')
else
  redis.call('HSET', KEYS[1], 'next', ARGV[6])
end
return {ARGV[4], ARGV[5], ARGV[6]}
