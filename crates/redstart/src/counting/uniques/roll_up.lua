-- Merges days into a period. PFMERGE adds to its destination, so the union is built under another name,
-- together with what the period had (its days may be gone by now), and takes its place in one step.
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
redis.call('RENAME', KEYS[1], KEYS[2])
if ARGV[1] ~= '0' then
  redis.call('PEXPIREAT', KEYS[2], ARGV[1])
end
return count
