-- Claims a request, or says what became of it. After now.lua and keep.lua.
--
-- KEYS     1  the request (hash: f fingerprint, t token of the run, e end of its lease in us, r result,
--             u set if its outcome is unknown, 'v' and a token for each run that was called off before it began with the
--             end of that mark in ms, l the last of these ends, x the end of all but the marks in ms if these last longer)
-- ARGV     1  fingerprint
--          2  token of this run
--          3  lease in us
--          4  ms to keep a claim whose outcome stays unknown
--          5  '1' to run again what another run left without an outcome
-- Returns  {'started'} | {'replay', result} | {'busy', us until the lease ends} | {'unknown'} | {'mismatch'}
--          | {'void'} if this very run was called off
local found = redis.call('HMGET', KEYS[1], 'f', 't', 'e', 'r', 'u', 'v' .. ARGV[2], 'l', 'x')
local fingerprint, token, ends, result, unknown, void, last, over = unpack(found, 1, 8)
if void then return { 'void' } end
if over and tonumber(over) <= now() / 1000 then
  redis.call('HDEL', KEYS[1], 'f', 't', 'e', 'r', 'u', 'x')
  fingerprint = false
end
if fingerprint then
  if fingerprint ~= ARGV[1] then return { 'mismatch' } end
  if result then return { 'replay', result } end
  if token == ARGV[2] then
    -- The same run again: the reply to the first attempt was lost, or came too late. Its lease begins anew.
    redis.call('HSET', KEYS[1], 'e', string.format('%.0f', now() + ARGV[3]))
    keep(ARGV[4], last)
    return { 'started' }
  end
  local left = tonumber(ends) - now()
  if left > 0 and not unknown then return { 'busy', left } end
  if ARGV[5] ~= '1' then return { 'unknown' } end
end
redis.call('HDEL', KEYS[1], 'u')
redis.call('HSET', KEYS[1], 'f', ARGV[1], 't', ARGV[2], 'e', string.format('%.0f', now() + ARGV[3]))
keep(ARGV[4], last)
return { 'started' }
