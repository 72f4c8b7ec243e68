-- Closes or reopens a sale: a closed one takes no new reservations.
--
-- KEYS     1  sale
-- ARGV     1  '1' to close it, '0' to open it again
--          2  id of the sale, '' if the caller does not know it
-- Returns  {1, or 0 if there is no sale, or -1 if it is not the caller's: nothing was changed; id of the sale}
local found = redis.call('HMGET', KEYS[1], 'ends', 'id')
if not found[1] then return { 0, '' } end
local id = found[2] or ''
if ARGV[2] ~= '' and ARGV[2] ~= id then return { -1, id } end
if ARGV[1] == '1' then redis.call('HSET', KEYS[1], 'closed', 1) else redis.call('HDEL', KEYS[1], 'closed') end
return { 1, id }
