-- Stores an entry if the lease is still the filler's and nobody else has stored one meanwhile, and ends the lease.
--
-- KEYS     1  the entry (string)
--          2  the lease (string: the token of the filler)
-- ARGV     1  the token
--          2  the entry's ttl in ms; 0 to store nothing
--          3  the entry
--          4  the SHA-1 of the entry that the filler saw before it loaded; empty if there was none
-- Returns  1 if the lease was the filler's, else 0
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[2])
if ARGV[2] == '0' then
  return 1
end
-- An entry that has ended is stored anew. One of another type is an error here, and not ours either.
local entry = redis.pcall('GET', KEYS[1])
if not entry or (ARGV[4] ~= '' and type(entry) == 'string' and redis.sha1hex(entry) == ARGV[4]) then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
end
return 1
