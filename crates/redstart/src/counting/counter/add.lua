-- Adds to a counter and renews its lifetime.
-- KEYS[1] the count
-- ARGV[1] how many  ARGV[2] lifetime in ms, 0 for ever
-- Returns the new count
local existed = redis.call('EXISTS', KEYS[1]) == 1
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if ARGV[2] == '0' then
  if existed then
    redis.call('PERSIST', KEYS[1])
  end
elseif existed then
  -- Another instance may have set a longer lifetime, or none (which GT leaves alone).
  redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
else
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return count
