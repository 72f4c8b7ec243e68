-- Fragment: jobs of a flow. After place.lua.
--
-- Defines  staged_job(text): a job of a flow as flow_stage.lua has it: { number of its children, its record from byte 35 on }
--          add_jobs(nodes, limit, now): adds jobs, each { number of its children, its record from byte 35 on }, parents before
--          their children: a parent waits until its children are over, or is buried at `limit`
local function staged_job(text)
  local colon = string.find(text, ':', 1, true)
  return { tonumber(sub(text, 1, colon - 1)), sub(text, colon + 1) }
end

local function add_jobs(nodes, limit, now)
  local stamp = math.max(now, tonumber(redis.call('HGET', meta, 'stamp') or 0) + 1)
  local leaves, ids, in_group = {}, {}, false
  for _, node in ipairs(nodes) do
    local record = 'Jr' .. digits(now) .. digits(stamp) .. node[2]
    local id = id_of(record)
    stamp = stamp + 1
    ids[#ids + 1] = id
    in_group = in_group or group_of(record)
    if node[1] == 0 then
      leaves[#leaves + 1] = record
    else
      redis.call('HSET', jobs, id, as(record, 'w', now))
      redis.call('HSET', details, id .. 'w', node[1])
      redis.call('ZADD', parents, limit, id)
    end
  end
  if in_group then redis.call('HSET', meta, 'stamp', format('%.0f', stamp)) end
  make_ready('RPUSH', leaves)
  event('added', table.concat(ids))
  wake(#leaves)
end
