-- Lets a probe through, if the circuit is half-open (or its time of open is over) and a place is free.
-- ARGV[5] token of the probe  ARGV[6] its lease in us
-- Returns {state, generation, us until the end of open, 1 if admitted as a probe,
--          us until the next lease ends otherwise}
if circuit.state == 'o' and now >= circuit.till then turn('h') end
local said = describe()
said[4], said[5] = 0, 0
if circuit.state ~= 'h' then return said end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now))
if redis.call('ZSCORE', KEYS[3], ARGV[5]) or redis.call('ZCARD', KEYS[3]) < tonumber(ARGV[4]) then
  redis.call('ZADD', KEYS[3], string.format('%.0f', now + ARGV[6]), ARGV[5])
  redis.call('PEXPIRE', KEYS[3], ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  said[4] = 1
else
  said[5] = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] - now
end
return said
