-- Fragment: opens the circuit if the window says so. After circuit.lua.
--
-- ARGV     8   calls before anything is decided
--          9   failures per million calls that open the circuit, 0: never
--          10  slow calls per million calls that open it, 0: never
--          11  instances that must have seen trouble
-- Defines  judge(calls, failed, slow, instances) -> {state, generation, us until the end of open}
local function judge(calls, failed, slow, instances)
  local failures, slows = tonumber(ARGV[9]), tonumber(ARGV[10])
  local bad = failures > 0 and failed * 1000000 >= failures * calls
    or slows > 0 and slow * 1000000 >= slows * calls
  if bad and calls >= tonumber(ARGV[8]) and instances >= tonumber(ARGV[11]) then change_to('o') end
  return describe()
end
