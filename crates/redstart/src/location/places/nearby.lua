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

local search, n = {'GEOSEARCH', KEYS[1]}, 2
local function say(...)
  for _, word in ipairs({...}) do
    n = n + 1
    search[n] = word
  end
end
if ARGV[1] == 'member' then
  if not redis.call('ZSCORE', KEYS[1], ARGV[2]) or gone(ARGV[2]) then
    return {}
  end
  say('FROMMEMBER', ARGV[2])
else
  say('FROMLONLAT', ARGV[2], ARGV[3])
end
if ARGV[4] == 'radius' then
  say('BYRADIUS', ARGV[5], 'm')
else
  say('BYBOX', ARGV[5], ARGV[6], 'm')
end
say('ASC', 'COUNT', 0, 'WITHDIST', 'WITHCOORD')
local place = n - 2

local wanted = tonumber(ARGV[7])
local count = wanted + (ARGV[8] ~= '' and 1 or 0)
while true do
  search[place] = string.format('%.0f', count)
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
