-- Looks at the circuit and changes nothing. After now.lua and circuit.lua, which state KEYS and ARGV[1-4].
--
-- Returns  {state, generation, us until the end of open}
return describe()
