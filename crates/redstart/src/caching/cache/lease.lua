-- Asks for the right to load a key.
--
-- KEYS[1] the entry
-- KEYS[2] the lease: the token of the loader, or 'rest' after a failed load
-- KEYS[3] the fence: exists while a write-through is under way
-- KEYS[4] the caller's entry beside one of another fingerprint
-- ARGV[1] a new token
-- ARGV[2] how long the lease lasts, ms
-- ARGV[3] 'exclusive': one loader at a time; 'shared': join the loader, under the same token
-- ARGV[4] the stamp of the entry that the caller saw and cannot use; '' if it saw none
-- ARGV[5] the caller's fingerprint
--
-- Returns {'value', bytes, ms left}  another entry is there by now
--         {'lease', token}           load, and fill under this token
--         {'wait', ms}               another process loads, for at most this long
--         {'rest', ms}               a load failed recently, and a stale value can be served
--         {'fenced', ms}             a write is under way: load, but do not fill
local head = redis.call('GETRANGE', KEYS[1], 0, 35)
if string.sub(head, 1, 3) == 'RC\1' then
  if string.sub(head, 5, 12) == ARGV[5] then
    if string.sub(head, 21, 28) ~= ARGV[4] then
      return {'value', redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}
    end
  else
    local beside = redis.call('GETRANGE', KEYS[4], 0, 35)
    if string.sub(beside, 29, 36) == string.sub(head, 29, 36) and string.sub(beside, 21, 28) ~= ARGV[4] then
      local left = math.min(redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[4]))
      return {'value', redis.call('GET', KEYS[4]), left}
    end
  end
end
local fence = redis.call('PTTL', KEYS[3])
if fence ~= -2 then
  return {'fenced', fence}
end
local held = redis.call('GET', KEYS[2])
if held then
  if held == ARGV[1] then
    return {'lease', held}
  end
  if held == 'rest' then
    return {'rest', redis.call('PTTL', KEYS[2])}
  end
  if ARGV[3] == 'shared' then
    if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then
      redis.call('PEXPIRE', KEYS[2], ARGV[2])
    end
    return {'lease', held}
  end
  return {'wait', redis.call('PTTL', KEYS[2])}
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {'lease', ARGV[1]}
