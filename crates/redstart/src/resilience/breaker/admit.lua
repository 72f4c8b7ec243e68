-- Lets a probe through, if the circuit is half-open (or its time of open is over) and a place is free.
-- After now.lua, leased_set.lua and circuit.lua, which states KEYS and ARGV[1-4].
--
-- ARGV     5  token of the probe
--          6  its lease in us
-- Returns  {state, generation, us until the end of open, 1 if admitted as a probe,
--           us until the next lease ends if all places are taken}
if circuit.state == 'o' and at >= circuit.till then change_to('h') end
local said = describe()
said[4], said[5] = 0, 0
if circuit.state ~= 'h' then return said end
leases.reap(KEYS[3], at)
if leases.runs(KEYS[3], ARGV[5], at) or leases.count(KEYS[3], at) < tonumber(ARGV[4]) then
  leases.grant(KEYS[3], ARGV[5], at, tonumber(ARGV[6]))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  said[4] = 1
else
  local _, ends = leases.first(KEYS[3], at)
  said[5] = ends - at
end
return said
