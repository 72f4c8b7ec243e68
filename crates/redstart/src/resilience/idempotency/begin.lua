-- Claims a request, or says what became of it.
-- KEYS[1] the request: fields f (fingerprint), t (token of who works on it), r (result)
-- ARGV    fingerprint, token, lease in ms
-- Returns {'started'} | {'replay', result} | {'busy', ms until the claim may be taken over} | {'mismatch'}
local seen = redis.call('HMGET', KEYS[1], 'f', 't', 'r')
if not seen[1] then
  redis.call('HSET', KEYS[1], 'f', ARGV[1], 't', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return { 'started' }
end
if seen[1] ~= ARGV[1] then return { 'mismatch' } end
if seen[3] then return { 'replay', seen[3] } end
-- The same claim again: its reply was lost.
if seen[2] == ARGV[2] then return { 'started' } end
return { 'busy', redis.call('PTTL', KEYS[1]) }
