-- Lets a session live for a time from now, unless it has no TTL.
--
-- KEYS     1  the session (string: JSON)
-- ARGV     1  the time in s
-- Returns  1, or 0 if there is no such session
local left = redis.call('PTTL', KEYS[1])
if left >= 0 then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return left == -2 and 0 or 1
