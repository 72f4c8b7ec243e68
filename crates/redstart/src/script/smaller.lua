-- Whether a comes before b in a sorted set, which goes by bytes; Lua's `<` goes by the server's locale.
local function smaller(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end
