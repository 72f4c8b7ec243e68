-- Ends a reservation that still holds.
--
-- KEYS  1 the queue  2 reserved
-- ARGV  1 wake channel  2 the record as it was reserved  3 '1' = put it back
-- Returns  1 ended, 0 its lease had ended
if redis.call('ZREM', KEYS[2], ARGV[2]) == 0 then return 0 end
if ARGV[3] == '1' then
  redis.call('ZADD', KEYS[1], tonumber(string.sub(ARGV[2], 33, 43)) or 0, ARGV[2])
  redis.call('SPUBLISH', ARGV[1], '')
end
return 1
