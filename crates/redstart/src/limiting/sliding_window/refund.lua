-- Removes a grant from the log. Members that have left the window already do not count. After now.lua.
--
-- KEYS     1  the log
-- ARGV     1  cost
--          2  window in us
--          3  id of the grant
-- Returns  the credited units
local live = now() - ARGV[2]
local cost, credit = tonumber(ARGV[1]), 0
for from = 1, cost, 1000 do
  local members = {}
  for i = from, math.min(from + 999, cost) do members[#members + 1] = ARGV[3] .. ':' .. i end
  for _, score in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(members))) do
    if score and tonumber(score) > live then credit = credit + 1 end
  end
  redis.call('ZREM', KEYS[1], unpack(members))
end
return credit
