-- Draws members by weight: a uniform point below the sum of all weights, located by descending the tree of sums.
-- KEYS[1] place -> member  KEYS[2] member -> place  KEYS[3] place -> weight  KEYS[4] the tree
-- KEYS[5] meta: capacity, used, count, total  KEYS[6] places to use again
-- ARGV[1] with or without (replacement)  ARGV[2] how many  ARGV[3] seed: random text
-- Returns the members
local meta = redis.call('HMGET', KEYS[5], 'capacity', 'total')
local capacity, total = tonumber(meta[1] or 1), tonumber(meta[2] or 0)

-- 52 random bits from the digest of the seed and a counter. Lua's own generator starts with the same seed in every
-- script.
local drawn = 0
local function random()
  drawn = drawn + 1
  return tonumber(string.sub(redis.sha1hex(ARGV[3] .. ':' .. drawn), 1, 13), 16)
end

-- Uniform in [0, total), exactly: numbers beyond the last whole multiple of the total are drawn again, which happens
-- to at most one in four because the total is at most 2^50.
local function point_below_total()
  local limit = 2 ^ 52 - 2 ^ 52 % total
  local number
  repeat
    number = random()
  until number < limit
  return number % total
end

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
for _ = 1, tonumber(ARGV[2]) do
  if total <= 0 then
    break
  end
  local point = point_below_total()
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
