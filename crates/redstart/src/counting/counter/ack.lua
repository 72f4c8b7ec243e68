-- Forgets a batch that has arrived.
-- KEYS[1] the batch
-- ARGV[1] its id
-- Returns 1 if it was the one that is out, else 0
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return 1
