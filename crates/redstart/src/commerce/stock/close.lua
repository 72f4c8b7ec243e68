-- Closes or reopens a sale: a closed one takes no new reservations.
--
-- KEYS     1  sale
-- ARGV     1  '1' to close it, '0' to open it again
-- Returns  1, or 0 if there is no sale
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if ARGV[1] == '1' then redis.call('HSET', KEYS[1], 'closed', 1) else redis.call('HDEL', KEYS[1], 'closed') end
return 1
