-- Takes the TTL of an entry away if it still is the one that it was given.
--
-- KEYS     1  the entry
-- ARGV     1  the end that it was given, in ms since the Unix epoch
-- Returns  1 if it was taken away, else 0
if redis.call('PEXPIRETIME', KEYS[1]) == tonumber(ARGV[1]) then
  return redis.call('PERSIST', KEYS[1])
end
return 0
