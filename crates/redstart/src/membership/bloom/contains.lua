-- Looks elements up. KEYS, ARGV and the reply are those of bits.lua.
-- flags: for each element 1 for "probably", 0 for "certainly not"
for layer = 1, layers do
  local known, rest = look(layer, false, open, 1, #open), {}
  for i, element in ipairs(open) do
    if known[i] then
      flags[element] = '1'
    else
      rest[#rest + 1] = element
    end
  end
  open = rest
end
return {'ok', 0, table.concat(flags)}
