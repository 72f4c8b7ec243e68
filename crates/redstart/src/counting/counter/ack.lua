-- Forgets a drained count that has arrived.
-- KEYS[1] the drained count
-- ARGV[1] its id
-- Returns 1 if it was the outstanding one, else 0
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return 1
