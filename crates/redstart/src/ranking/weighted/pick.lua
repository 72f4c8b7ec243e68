-- Draws members by weight: a point below the sum of all weights, found by going down the tree of sums.
-- KEYS[1] place -> member  KEYS[2] member -> place  KEYS[3] place -> weight  KEYS[4] the tree
-- KEYS[5] meta: capacity, used, count, total  KEYS[6] places to use again
-- ARGV[1] with or without (replacement)  ARGV[2..] random whole numbers below 2^53, one for each draw
-- Returns the members
local meta = redis.call('HMGET', KEYS[5], 'capacity', 'total')
local capacity, total = tonumber(meta[1] or 1), tonumber(meta[2] or 0)

-- Sums as they are after the draws of this call; the store is not changed.
local cache = {}
local function sum(node)
  local known = cache[node]
  if not known then
    known = tonumber(redis.call('HGET', KEYS[4], string.format('%.0f', node)) or 0)
    cache[node] = known
  end
  return known
end

local members = {}
for i = 2, #ARGV do
  if total <= 0 then
    break
  end
  local point = math.floor(tonumber(ARGV[i]) / 2 ^ 53 * total)
  if point >= total then
    point = total - 1
  end
  local place, step = 0, capacity
  while step >= 1 do
    local node = place + step
    if node <= capacity and sum(node) <= point then
      point = point - sum(node)
      place = node
    end
    step = step / 2
  end
  place = place + 1
  local name = string.format('%.0f', place)
  members[#members + 1] = redis.call('HGET', KEYS[1], name)
  if ARGV[1] == 'without' then
    local weight = tonumber(redis.call('HGET', KEYS[3], name))
    total = total - weight
    local node = place
    while node <= capacity do
      cache[node] = sum(node) - weight
      local low = 1
      while node % (low * 2) == 0 do
        low = low * 2
      end
      node = node + low
    end
  end
end
return members
