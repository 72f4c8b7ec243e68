-- Puts the circuit into a state by an operator's decision. After now.lua and circuit.lua, which state KEYS and ARGV[1-4].
--
-- ARGV     5  the state: o or c
-- Returns  {state, generation, us until the end of open}
change_to(ARGV[5])
return describe()
