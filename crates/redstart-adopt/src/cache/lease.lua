-- Takes the lease for filling an entry, unless somebody has it.
--
-- KEYS     1  the entry (string)
--          2  the lease (string: the token of the filler)
-- ARGV     1  the token
--          2  the lease's ttl in ms
--          3  1 to take it only if the entry is missing
-- Returns  {1, the entry or nil} with the lease, {0, the entry or nil} without
local entry = redis.call('GET', KEYS[1])
if entry and ARGV[3] == '1' then
  return {0, entry}
end
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return {1, entry}
end
return {0, entry}
