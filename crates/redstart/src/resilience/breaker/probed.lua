-- Takes the result of a probe. One whose lease is over, or of another generation, no longer counts.
-- After now.lua, leased_set.lua and circuit.lua, which states KEYS and ARGV[1-4].
--
-- ARGV     5  token of the probe
--          6  its generation
--          7  o ok, f failed, a abandoned
-- Returns  {state, generation, us until the end of open}
if circuit.state ~= 'h' or circuit.gen ~= tonumber(ARGV[6]) then return describe() end
local runs = leases.drop(KEYS[3], ARGV[5], at)
if not runs or ARGV[7] == 'a' then return describe() end
if ARGV[7] == 'f' then
  change_to('o')
else
  circuit.ok = redis.call('HINCRBY', KEYS[1], 'ok', 1)
  if circuit.ok >= tonumber(ARGV[4]) then change_to('c') end
end
return describe()
