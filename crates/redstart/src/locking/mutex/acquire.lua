-- Takes the lock if it is free and issues its fence token in the same step. A waiter marks the holder's token, so
-- that a release sends a wake-up only if there are waiters.
--
-- KEYS     1  the lock (string: the owner's token, followed by '+' if there are waiters)
--          2  the last fence token; missing for a lock without fencing
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3  1 to wait for it, or missing
-- Returns  the fence token as text ('0' without fencing), or, as a number, the ms until the holder's lease ends (-1 if
--          it never does)
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local holder = redis.call('GET', KEYS[1])
  if holder ~= ARGV[1] and holder ~= ARGV[1] .. '+' then
    -- Only holders of this library look for the mark; tokens of other clients are left unchanged, also if they begin as ours do:
    -- `rs-`, 32 hexadecimal digits, and a label after a colon or nothing.
    local digits = string.match(holder, '^rs%-(%x+)')
    local ours = digits and #digits == 32 and (#holder == 35 or string.sub(holder, 36, 36) == ':')
    if ARGV[3] == '1' and ours and string.sub(holder, -1) ~= '+' then
      redis.call('APPEND', KEYS[1], '+')
    end
    return redis.call('PTTL', KEYS[1])
  end
  -- The same request again, because its first reply was lost: return the same token.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  local fence = KEYS[2] and redis.call('GET', KEYS[2])
  if fence then
    return fence
  end
end
return KEYS[2] and next_fence(KEYS[2]) or '0'
