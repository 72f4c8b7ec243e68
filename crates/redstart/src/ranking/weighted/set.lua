-- Sets a member's weight, or removes the member with weight 0. The tree is a Fenwick tree: node i holds the sum of
-- the places (i - lowbit(i), i], so a change touches log2(capacity) nodes.
-- KEYS[1] place -> member  KEYS[2] member -> place  KEYS[3] place -> weight  KEYS[4] the tree
-- KEYS[5] meta: capacity, used, count, total  KEYS[6] places to use again
-- ARGV[1] member  ARGV[2] weight
-- Returns the weight it had, nil if it had none, -1 if the sum would exceed 2^50 (then nothing is written)
local member, weight = ARGV[1], tonumber(ARGV[2])
local place = redis.call('HGET', KEYS[2], member)
local old = place and tonumber(redis.call('HGET', KEYS[3], place)) or 0
if weight == 0 and not place then
  return nil
end
local meta = redis.call('HMGET', KEYS[5], 'capacity', 'used', 'total')
local capacity, used, total = tonumber(meta[1] or 1), tonumber(meta[2] or 0), tonumber(meta[3] or 0)
if total + weight - old > 2 ^ 50 then
  return -1
end

local function text(number)
  return string.format('%.0f', number)
end

if not place then
  place = redis.call('RPOP', KEYS[6])
  if not place then
    used = used + 1
    place = text(used)
    if used > capacity then
      capacity = capacity * 2
      -- The new root covers all places.
      redis.call('HSET', KEYS[4], text(capacity), text(total))
      redis.call('HSET', KEYS[5], 'capacity', text(capacity))
    end
    redis.call('HSET', KEYS[5], 'used', text(used))
  end
  redis.call('HSET', KEYS[1], place, member)
  redis.call('HSET', KEYS[2], member, place)
  redis.call('HINCRBY', KEYS[5], 'count', 1)
end

local change = weight - old
local node = tonumber(place)
while change ~= 0 and node <= capacity do
  redis.call('HINCRBY', KEYS[4], text(node), text(change))
  -- The lowest bit of node, without bit operations on large numbers.
  local low = 1
  while node % (low * 2) == 0 do
    low = low * 2
  end
  node = node + low
end
redis.call('HSET', KEYS[5], 'total', text(total + change))

if weight == 0 then
  redis.call('HDEL', KEYS[1], place)
  redis.call('HDEL', KEYS[2], member)
  redis.call('HDEL', KEYS[3], place)
  if redis.call('HINCRBY', KEYS[5], 'count', -1) == 0 then
    -- The last member: no key stays behind.
    redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6])
  else
    redis.call('LPUSH', KEYS[6], place)
  end
else
  redis.call('HSET', KEYS[3], place, text(weight))
end
if old == 0 then
  return nil
end
return old
