-- Asks for the right to load a key.
--
-- KEYS[1] the value
-- KEYS[2] the lease: the token of whoever loads
-- KEYS[3] the fence: there while a write-through is under way
-- ARGV[1] a fresh token
-- ARGV[2] how long the lease lasts, ms
-- ARGV[3] 'exclusive': one loader at a time; 'shared': join whoever loads, under the same token
-- ARGV[4] the stamp (bytes 8 to 24) of the value that the caller saw and cannot use; '' if it saw none
--
-- Returns {'value', bytes, ms left}  another value is there by now
--         {'lease', token}           load, and fill under this token
--         {'wait', ms}               somebody else loads, for at most so long
--         {'fenced', ms}             a write is under way: load, but do not fill
local stamp = redis.call('GETRANGE', KEYS[1], 8, 24)
if stamp ~= '' and stamp ~= ARGV[4] then
  return {'value', redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}
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
