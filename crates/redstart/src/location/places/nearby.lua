-- Finds the nearest members whose deadline has not passed, and removes some of the stale ones.
-- KEYS[1] positions  KEYS[2] deadlines
-- ARGV[1] member or point  ARGV[2] the member, or the longitude  ARGV[3] '', or the latitude
-- ARGV[4] radius or box  ARGV[5] the radius, or the width  ARGV[6] '', or the height, all in metres
-- ARGV[7] how many at most  ARGV[8] a member to leave out, '' for none
-- Returns {member, distance, longitude, latitude} of each, the nearest first
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local stale = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 500)
if #stale > 0 then
  redis.call('ZREM', KEYS[1], unpack(stale))
  redis.call('ZREM', KEYS[2], unpack(stale))
end
-- More than that are left for the next calls and skipped below.
local more = redis.call('ZCOUNT', KEYS[2], '-inf', now) > 0
local function gone(member)
  local deadline = more and redis.call('ZSCORE', KEYS[2], member)
  return deadline and tonumber(deadline) <= now
end

local longitude, latitude = ARGV[2], ARGV[3]
if ARGV[1] == 'member' then
  local position = redis.call('GEOPOS', KEYS[1], ARGV[2])[1]
  if not position or gone(ARGV[2]) then
    return {}
  end
  longitude, latitude = position[1], position[2]
end
local wanted = tonumber(ARGV[7])

-- Searches outwards with growing limits until there are enough that are not stale.
local function nearest(shape)
  local search = {'GEOSEARCH', KEYS[1], 'FROMLONLAT', longitude, latitude}
  for _, word in ipairs(shape) do
    search[#search + 1] = word
  end
  for _, word in ipairs({'m', 'ASC', 'WITHDIST', 'WITHCOORD', 'COUNT'}) do
    search[#search + 1] = word
  end
  local count = wanted + (ARGV[8] ~= '' and 1 or 0)
  while true do
    search[#shape + 11] = string.format('%.0f', count)
    local found, reply = redis.call(unpack(search)), {}
    for _, row in ipairs(found) do
      if #reply < wanted and row[1] ~= ARGV[8] and not gone(row[1]) then
        reply[#reply + 1] = {row[1], row[2], row[3][1], row[3][2]}
      end
    end
    if #reply == wanted or #found < count then
      return reply
    end
    count = count * 4
  end
end

-- Around a pole Redis 7 misses members: the box of degrees that it draws around an area ends at the pole or, for a
-- wide one, underestimates how many degrees a length is. There, everything in the band of latitudes is looked at.
local radius = 6372797.560856
local east, north = math.rad(tonumber(longitude)), math.rad(tonumber(latitude))
local half_width, half_height = tonumber(ARGV[5]), tonumber(ARGV[5])
if ARGV[4] == 'box' then
  half_width, half_height = half_width / 2, tonumber(ARGV[6]) / 2
end
local left = math.pi / 2 - math.abs(north) - half_height / radius
if left > 0.002 and (ARGV[4] == 'radius' or half_width / radius < left / 10) then
  if ARGV[4] == 'radius' then
    return nearest({'BYRADIUS', ARGV[5]})
  end
  return nearest({'BYBOX', ARGV[5], ARGV[6]})
end

local function distance(east_a, north_a, east_b, north_b)
  local u, v = math.sin((north_b - north_a) / 2), math.sin((east_b - east_a) / 2)
  return 2 * radius * math.asin(math.min(1, math.sqrt(u * u + math.cos(north_a) * math.cos(north_b) * v * v)))
end
local function inside(there_east, there_north, far)
  if ARGV[4] == 'radius' then
    return far <= half_width
  end
  return distance(east, north, east, there_north) <= half_height
    and distance(east, there_north, there_east, there_north) <= half_width
end

local searches = {}
local top = math.rad(85.06)
local low = math.max(-top, math.abs(north) - half_height / radius)
local high = math.min(top, math.abs(north) + half_height / radius)
if low < math.rad(40) then
  -- A large part of the earth: all of it, to which the server knows no box.
  searches[1] = {'FROMLONLAT', longitude, latitude, 'BYRADIUS', '20030000', 'm', 'WITHCOORD'}
else
  local middle = (low + high) / 2 * (north < 0 and -1 or 1)
  local width = 2 * distance(0, low, math.pi / 4, low) + 1000
  local height = (high - low) * radius + 1000
  for quarter = 0, 3 do
    searches[quarter + 1] = {
      'FROMLONLAT', tostring(quarter * 90 - 135), string.format('%.9f', math.deg(middle)),
      'BYBOX', string.format('%.3f', width), string.format('%.3f', height), 'm', 'WITHCOORD',
    }
  end
end
local rows, seen = {}, {}
for _, search in ipairs(searches) do
  for _, row in ipairs(redis.call('GEOSEARCH', KEYS[1], unpack(search))) do
    if not seen[row[1]] then
      seen[row[1]] = true
      local there_east, there_north = math.rad(tonumber(row[2][1])), math.rad(tonumber(row[2][2]))
      local far = distance(east, north, there_east, there_north)
      if inside(there_east, there_north, far) and row[1] ~= ARGV[8] and not gone(row[1]) then
        rows[#rows + 1] = {row[1], far, row[2][1], row[2][2]}
      end
    end
  end
end
table.sort(rows, function(a, b)
  return a[2] < b[2]
end)
local reply = {}
for i = 1, math.min(wanted, #rows) do
  reply[i] = {rows[i][1], string.format('%.4f', rows[i][2]), rows[i][3], rows[i][4]}
end
return reply
