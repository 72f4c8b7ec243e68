-- Finds the nearest members whose deadline has not passed, and removes some of the stale ones.
-- KEYS[1] positions  KEYS[2] deadlines
-- ARGV[1] member or point  ARGV[2] the member, or the longitude  ARGV[3] '', or the latitude
-- ARGV[4] radius or box  ARGV[5] the radius, or the width  ARGV[6] '', or the height, all in metres
-- ARGV[7] how many at most  ARGV[8] a member to leave out, '' for none
-- ARGV[9] step: 0 to order by exact distance; else the order and the limit go by the distance rounded up to this,
--   then by name
-- ARGV[10] how many members may be read to find out who is within the step where the limit cuts
-- Returns {member, distance, longitude, latitude} of each, the nearest first
local time = math.floor(now() / 1000)
local stale = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', time, 'LIMIT', 0, 100)
if #stale > 0 then
  redis.call('ZREM', KEYS[1], unpack(stale))
  redis.call('ZREM', KEYS[2], unpack(stale))
end
-- Any further stale members are left for later calls and skipped below.
local more = redis.call('ZCOUNT', KEYS[2], '-inf', time) > 0
local function gone(member)
  local deadline = more and redis.call('ZSCORE', KEYS[2], member)
  return deadline and tonumber(deadline) <= time
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

-- Each search below defines nearest(count): the nearest rows, at most `count`, and whether there are no others.
local nearest

-- Asks the server with a growing limit until enough of the rows are not stale.
local function ask(shape)
  local search = {'GEOSEARCH', KEYS[1], 'FROMLONLAT', longitude, latitude}
  for _, word in ipairs(shape) do
    search[#search + 1] = word
  end
  for _, word in ipairs({'m', 'ASC', 'WITHDIST', 'WITHCOORD', 'COUNT'}) do
    search[#search + 1] = word
  end
  return function(enough)
    local count = enough + (ARGV[8] ~= '' and 1 or 0)
    while true do
      search[#shape + 11] = string.format('%.0f', count)
      local found, rows = redis.call(unpack(search)), {}
      for _, row in ipairs(found) do
        if #rows < enough and row[1] ~= ARGV[8] and not gone(row[1]) then
          rows[#rows + 1] = {row[1], row[2], row[3][1], row[3][2]}
        end
      end
      if #found < count then
        return rows, #rows < enough
      elseif #rows == enough then
        return rows, false
      end
      count = count * 4
    end
  end
end

-- The answer, by exact distance or by rounded distance and name.
local function answer()
  local step = tonumber(ARGV[9])
  if step == 0 then
    return (nearest(wanted))
  end
  local function ring(row)
    return math.max(1, math.ceil(tonumber(row[2]) / step))
  end
  local count, most = wanted + 1, math.max(tonumber(ARGV[10]), wanted) + 1
  local rows, all = nearest(count)
  local cut = rows[wanted] and ring(rows[wanted])
  -- Everybody in the ring where the limit cuts has to be known, so that names decide and not distances.
  while not all and ring(rows[#rows]) == cut and count < most do
    count = math.min(count * 4, most)
    rows, all = nearest(count)
  end
  if not all and ring(rows[#rows]) == cut then
    while #rows > 0 and ring(rows[#rows]) == cut do
      rows[#rows] = nil
    end
  end
  table.sort(rows, function(a, b)
    local ring_a, ring_b = ring(a), ring(b)
    if ring_a ~= ring_b then
      return ring_a < ring_b
    end
    return smaller(a[1], b[1])
  end)
  for i = #rows, wanted + 1, -1 do
    rows[i] = nil
  end
  return rows
end

-- Around a pole Redis 7 misses members: the box of degrees that it draws around an area ends at the pole or, for a
-- wide area, underestimates how many degrees a length is. There, all members in the band of latitudes are examined.
local radius = 6372797.560856
local east, north = math.rad(tonumber(longitude)), math.rad(tonumber(latitude))
local half_width, half_height = tonumber(ARGV[5]), tonumber(ARGV[5])
if ARGV[4] == 'box' then
  half_width, half_height = half_width / 2, tonumber(ARGV[6]) / 2
end
local left = math.pi / 2 - math.abs(north) - half_height / radius
if left > 0.002 and (ARGV[4] == 'radius' or half_width / radius < left / 10) then
  if ARGV[4] == 'radius' then
    nearest = ask({'BYRADIUS', ARGV[5]})
  else
    nearest = ask({'BYBOX', ARGV[5], ARGV[6]})
  end
  return answer()
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
  -- A large part of the earth: search all of it, because there is no box for that.
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
nearest = function(enough)
  local first = {}
  for i = 1, math.min(enough, #rows) do
    first[i] = {rows[i][1], string.format('%.4f', rows[i][2]), rows[i][3], rows[i][4]}
  end
  return first, #rows <= enough
end
return answer()
