-- Ends a term, regardless of the caller, and tells candidates and observers.
--
-- KEYS     1  the office (hash: token, id, term)
--          2  unused here: the last term
-- ARGV     1  the term
--          2  the channel on which candidates and observers listen
-- Returns  1 if the term had not ended, else 0
if redis.call('HGET', KEYS[1], 'term') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SPUBLISH', ARGV[2], '')
return 1
