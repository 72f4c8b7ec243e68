-- Gives the office back if it is the leader's own, and tells candidates and observers.
--
-- KEYS     1  the office (hash: token, id, term)
-- ARGV     1  the leader's token
--          2  the channel on which candidates and observers listen
-- Returns  1 if the office was its own, else 0
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SPUBLISH', ARGV[2], '')
return 1
