-- A parent in another queue has heard of a child: the message is removed, unless there is a newer one.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6 the child's id  7 when it ended: 16 digits
-- Returns  1
if sub(redis.call('HGET', details, ARGV[6] .. 'q') or '', 1, 16) == ARGV[7] then
  redis.call('HDEL', details, ARGV[6] .. 'q')
  redis.call('ZREM', parents, '>' .. ARGV[6])
end
return 1
