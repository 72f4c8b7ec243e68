-- Reads positions of members.
-- KEYS[1] positions  KEYS[2] deadlines
-- ARGV    members
-- Returns for each member {longitude, latitude, geohash}, nil if it has no position or its deadline has passed
local time = math.floor(now() / 1000)
local reply = {}
for i, member in ipairs(ARGV) do
  local deadline = redis.call('ZSCORE', KEYS[2], member)
  local position = redis.call('GEOPOS', KEYS[1], member)[1]
  if position and not (deadline and tonumber(deadline) <= time) then
    reply[i] = {position[1], position[2], redis.call('GEOHASH', KEYS[1], member)[1]}
  else
    reply[i] = false
  end
end
return reply
