-- Gives back what a grant took, as far as time has not paid it off: takes it out of the queue of debts.
--
-- If the grant had never been made, the debt would be lower by at least that much; crediting more would let through more
-- than the capacity at once. A grant of an earlier busy period is worth nothing. At most 256 holes are kept; a forgotten
-- hole makes later refunds smaller, never larger.
--
-- KEYS     1  the bucket
-- ARGV     1  cost: units * parts per unit
--          2  rate: parts that are paid back each microsecond
--          3  busy period of the grant
--          4  its position
-- Returns  the credited parts
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
local second, due, period, taken, text =
  string.match(value, '^(%d%d%d%d%d%d%d%d%d%d)(%d+) (%S+) (%d+) (%S*)$')
if period ~= ARGV[3] then return 0 end
local rate, position = tonumber(ARGV[2]), tonumber(ARGV[4])
taken = tonumber(taken)
local time = redis.call('TIME')
local tick = time[2] * rate
local debt = due - (time[1] - second) * 1000000 * rate - tick

-- What is behind the grant in the queue: all that was taken after it, except for the holes.
local behind = taken - position
local holes, at = {}, 1
for place, size in string.gmatch(text, '(%d+):(%d+);') do
  place, size = tonumber(place), tonumber(size)
  holes[#holes + 1] = { place, size }
  if place > position then behind = behind - size else at = #holes + 1 end
end
local credit = math.min(tonumber(ARGV[1]), debt - behind)
if credit <= 0 then return 0 end
debt = debt - credit
if debt <= 0 then
  redis.call('DEL', KEYS[1])
  return credit
end

-- The grant becomes a hole, joined with the hole before it if nothing is between the two.
table.insert(holes, at, { position, credit })
if at > 1 and holes[at - 1][1] == position - credit then
  holes[at][2] = credit + holes[at - 1][2]
  table.remove(holes, at - 1)
end
-- A hole at the end of the queue is as good as never taken.
while #holes > 0 and holes[#holes][1] == taken do
  taken = taken - holes[#holes][2]
  table.remove(holes)
end
-- Holes matter to the grants before them; where all of those are paid off, they are forgotten. Backwards from the end,
-- `rest` is what is behind each hole.
local first, rest, last = #holes + 1, 0, taken
while first > 1 and #holes - first < 255 do
  rest = rest + last - holes[first - 1][1]
  if rest >= debt then break end
  first = first - 1
  last = holes[first][1] - holes[first][2]
end
local kept = {}
for i = first, #holes do
  kept[#kept + 1] = string.format('%.0f:%.0f;', holes[i][1], holes[i][2])
end
redis.call('SET', KEYS[1],
  string.format('%s%.0f %s %.0f %s', time[1], tick + debt, period, taken, table.concat(kept)),
  'PX', math.ceil(debt / rate / 1000))
return credit
