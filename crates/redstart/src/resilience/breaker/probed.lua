-- Takes a probe's result. One whose lease is over, or of another generation, counts no more.
-- ARGV[5] token  ARGV[6] generation  ARGV[7] o ok, f failed, a abandoned
-- Returns {state, generation, us until the end of open}
if circuit.state ~= 'h' or circuit.gen ~= tonumber(ARGV[6]) then return describe() end
local ends = redis.call('ZSCORE', KEYS[3], ARGV[5])
if not ends then return describe() end
redis.call('ZREM', KEYS[3], ARGV[5])
if tonumber(ends) <= now or ARGV[7] == 'a' then return describe() end
if ARGV[7] == 'f' then
  turn('o')
else
  circuit.ok = redis.call('HINCRBY', KEYS[1], 'ok', 1)
  if circuit.ok >= tonumber(ARGV[4]) then turn('c') end
end
return describe()
