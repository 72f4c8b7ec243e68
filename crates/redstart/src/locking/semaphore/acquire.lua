-- Takes one of the permits, if one is free.
--
-- KEYS     1  the permits (sorted set: owner's token -> end of its lease in us)
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3-5  unused here: whether to queue, the waiter's lease in ms, the channel
--          6  the number of permits
-- Returns  {1, 0}, or {0, ms until the first lease ends}
local at = now()
leases.reap(KEYS[1], at)
if not leases.runs(KEYS[1], ARGV[1], at) and leases.count(KEYS[1], at) >= tonumber(ARGV[6]) then
  local _, ends = leases.first(KEYS[1], at)
  return {0, leases.millis(at, ends)}
end
leases.grant(KEYS[1], ARGV[1], at, ARGV[2] * 1000)
return {1, 0}
