-- Fragment: the position of a point (a score and a member) in a sorted set, whether or not the member is there.
-- Needs smaller.lua.
--
-- Defines  position(key, high, score, member) -> how many members come before the point, 1 if the point itself is in
--          the set else 0. high: whether the highest score comes first. Equal scores are ordered by name, backwards
--          if high. The point's place among equal scores is found by bisection.
local function position(key, high, score, member)
  local stored = redis.call('ZSCORE', key, member)
  if stored and tonumber(stored) == tonumber(score) then
    return redis.call(high and 'ZREVRANK' or 'ZRANK', key, member), 1
  end
  local below = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local same = redis.call('ZCOUNT', key, score, score)
  local low, top = 0, same
  while low < top do
    local middle = math.floor((low + top) / 2)
    local at = string.format('%.0f', below + middle)
    if smaller(redis.call('ZRANGE', key, at, at)[1], member) then
      low = middle + 1
    else
      top = middle
    end
  end
  -- `low` of those with the same score have a smaller name.
  if not high then
    return below + low, 0
  end
  return redis.call('ZCOUNT', key, '(' .. score, '+inf') + same - low, 0
end

