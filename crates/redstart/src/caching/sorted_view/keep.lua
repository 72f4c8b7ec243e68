-- Keeps a view that the client sorted itself, because this server does not sort by other keys on a Cluster.
--
-- KEYS[1] the view
-- KEYS[2] the mark of a built view
-- KEYS[3] the lease
-- ARGV[1] the token
-- ARGV[2] how long the view is kept, ms
-- ARGV[3] the channel that wakes waiting clients
-- ARGV[4…] the elements
--
-- Returns how many elements were stored, -1 if the lease was lost
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
  return -1
end
redis.call('UNLINK', KEYS[1])
local stored = #ARGV - 3
for first = 4, #ARGV, 1000 do
  redis.call('RPUSH', KEYS[1], unpack(ARGV, first, math.min(#ARGV, first + 999)))
end
if stored > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('SET', KEYS[2], stored, 'PX', ARGV[2])
redis.call('UNLINK', KEYS[3])
redis.call('SPUBLISH', ARGV[3], 'built')
return stored
