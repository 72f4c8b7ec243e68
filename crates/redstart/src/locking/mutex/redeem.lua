-- Gives a held lock to a new owner, once, with a new fence token: whatever the former owner still sends to the resource
-- is older. The lease runs for at least `ttl` from now. Used by every lock that keeps its owner's token in a string.
--
-- KEYS     1  the lock (string: the owner's token, followed by '+' if there are waiters)
--          2-  the lock's other keys; the last is the last fence token. None for a lock without fencing
-- ARGV     1  the token of the owner that handed it over
--          2  the new owner's token
--          3  ttl in ms
--          4-  unused here: the channel, and the lock's arguments
-- Returns  the new owner's fence token as text ('0' without fencing), or nil if the lock is not to be had
local last = #KEYS > 1 and KEYS[#KEYS]
local holder = redis.call('GET', KEYS[1])
local fence
if holder == ARGV[1] or holder == ARGV[1] .. '+' then
  redis.call('SET', KEYS[1], ARGV[2] .. string.sub(holder, #ARGV[1] + 1), 'KEEPTTL')
elseif holder == ARGV[2] or holder == ARGV[2] .. '+' then
  -- The same request again, because its first reply was lost: return the same token.
  fence = last and redis.call('GET', last)
else
  return false
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return fence or last and next_fence(last) or '0'
