-- Ends the leader's term if it still leads, and tells candidates and observers.
--
-- KEYS     1  the office (hash: token, id, term)
--          2  unused here: the last term
-- ARGV     1  the leader's token
--          2  the channel on which candidates and observers listen
--          3  unused here: the leader's id
-- Returns  1 if it led, else 0
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SPUBLISH', ARGV[2], '')
return 1
