-- Moves on to the next item. Passing the mark ends a lap.
--
-- KEYS  1 the ring  2 laps
-- Returns  {item with its prefix, laps that have ended}, or {} if the ring has no items
for _ = 1, 2 do
  local item = redis.call('LMOVE', KEYS[1], KEYS[1], 'LEFT', 'RIGHT')
  if not item then return {} end
  if item ~= 'lap' then
    return { item, tonumber(redis.call('GET', KEYS[2]) or 0) }
  end
  if redis.call('LLEN', KEYS[1]) > 1 then redis.call('INCR', KEYS[2]) end
end
return {}
