-- Keeps a value that was loaded from the database, if nothing was written meanwhile.
--
-- KEYS[1] the value, or '?' and the token of the loader
-- ARGV[1] '?' and the token
-- ARGV[2] what to keep
-- ARGV[3] how long, ms
--
-- Returns 1 kept, 0 refused
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
