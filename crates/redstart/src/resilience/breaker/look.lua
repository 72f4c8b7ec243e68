-- Looks at the circuit and changes nothing.
-- Returns {state, generation, us until the end of open}
return describe()
