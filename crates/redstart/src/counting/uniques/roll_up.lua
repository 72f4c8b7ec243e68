-- Merges days into a week or month. PFMERGE adds to its destination, so the union is built under another name,
-- together with what the period had (its days may have expired), and replaces it in one step.
-- KEYS[1] a name to build under  KEYS[2] the period  KEYS[3..] its days
-- ARGV[1] when the period expires, in ms since the epoch, 0 for never
-- Returns the estimate
redis.call('DEL', KEYS[1])
redis.call('PFMERGE', KEYS[1], unpack(KEYS, 2))
local count = redis.call('PFCOUNT', KEYS[1])
if count == 0 then
  redis.call('DEL', KEYS[1])
  return 0
end
local left = redis.call('PEXPIRETIME', KEYS[2])
redis.call('RENAME', KEYS[1], KEYS[2])
-- -2: there was no such key; -1: it had no expiry, and keeps none.
if ARGV[1] ~= '0' and left ~= -1 then
  redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', math.max(left, tonumber(ARGV[1]))))
end
return count
