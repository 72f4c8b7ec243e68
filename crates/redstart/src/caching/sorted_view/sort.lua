-- Sorts and keeps the result with its TTL, in one step.
--
-- KEYS[1] the source
-- KEYS[2] the view
-- KEYS[3] the mark of a built view; an empty list is not a key, so an empty view needs it
-- KEYS[4] the lease
-- ARGV[1] the token
-- ARGV[2] how long the view is kept, ms
-- ARGV[3] the channel that wakes waiting clients
-- ARGV[4…] what SORT takes between the source and STORE
--
-- Returns how many elements were stored, -1 if the lease was lost
if redis.call('GET', KEYS[4]) ~= ARGV[1] then
  return -1
end
local sort = {'SORT', KEYS[1]}
for i = 4, #ARGV do
  sort[#sort + 1] = ARGV[i]
end
sort[#sort + 1] = 'STORE'
sort[#sort + 1] = KEYS[2]
local stored = redis.call(unpack(sort))
if stored > 0 then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
redis.call('SET', KEYS[3], stored, 'PX', ARGV[2])
redis.call('UNLINK', KEYS[4])
redis.call('SPUBLISH', ARGV[3], 'built')
return stored
