-- Strikes a grant from the log. Members that have left the window already do not count.
-- KEYS[1] the log
-- ARGV    cost, window in us, id of the grant
-- Returns the credited units
local time = redis.call('TIME')
local live = time[1] * 1000000 + time[2] - ARGV[2]
local credit = 0
for i = 1, tonumber(ARGV[1]) do
  local member = ARGV[3] .. ':' .. i
  local score = redis.call('ZSCORE', KEYS[1], member)
  if score then
    if tonumber(score) > live then credit = credit + 1 end
    redis.call('ZREM', KEYS[1], member)
  end
end
return credit
