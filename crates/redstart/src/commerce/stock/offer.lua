-- How many units a shard could lend. Changes nothing. After now.lua.
--
-- KEYS     1  sale
--          2  holds
-- Returns  {free, lent, holds that are over, id of the sale}, or nil if there is no sale
local counts = redis.call('HMGET', KEYS[1], 'free', 'lent', 'id')
if not counts[1] then return false end
return { tonumber(counts[1]), tonumber(counts[2]),
  redis.call('ZCOUNT', KEYS[2], '-inf', string.format('%.0f', now())), counts[3] or '' }
