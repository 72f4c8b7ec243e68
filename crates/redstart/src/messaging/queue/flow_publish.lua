-- Hands out the next jobs of a large flow that is complete, parents before their children: as many as one script should. One that
-- is not complete in time is removed, likewise.
--
-- KEYS  1-16 as in place.lua  17 the flow's jobs, by number; the field '' is the next to be handed out  18 flows that are
--       handed out, by when workers look at them
-- ARGV  1-5 as in place.lua  6 the flow  7 for how many microseconds others leave it alone
-- Returns  how many are left
-- After flow_jobs.lua too.
local staged, flows = KEYS[17], KEYS[18]
local at, now = tonumber(redis.call('HGET', staged, '') or -1), now()

local function leave(left)
  if left > 0 then
    redis.call('ZADD', flows, format('%.0f', now + ARGV[7]), ARGV[6])
  else
    redis.call('DEL', staged)
    redis.call('ZREM', flows, ARGV[6])
  end
  return left
end

if at < 0 then
  -- If it is being added again after all, this is not the time.
  if tonumber(redis.call('ZSCORE', flows, ARGV[6]) or 0) > now then return 0 end
  local some = redis.call('HRANDFIELD', staged, 500)
  if #some > 0 then redis.call('HDEL', staged, unpack(some)) end
  return leave(redis.call('HLEN', staged))
end

local nodes, bytes, taken = {}, 0, {}
while not is_enough() and bytes < 500000 do
  local fields = {}
  for i = at, at + 9 do fields[#fields + 1] = format('%.0f', i) end
  local found = redis.call('HMGET', staged, unpack(fields))
  for _, node in ipairs(found) do
    if not node then break end
    nodes[#nodes + 1] = staged_job(node)
    bytes = bytes + #node
    spent = spent + 10
  end
  taken[#taken + 1] = fields
  at = at + #fields
  if not found[#fields] then break end
end
add_jobs(nodes, '+inf', now)
-- After that, so that an error leaves them where they are.
for _, fields in ipairs(taken) do redis.call('HDEL', staged, unpack(fields)) end
local left = redis.call('HLEN', staged) - 1
if left > 0 then redis.call('HSET', staged, '', at) end
return leave(left)
