-- Adds elements to the last layer, unless an older one has them. KEYS, ARGV and the reply are those of bits.lua.
-- flags: for each element 1 for new, 0 for probably known, - for not added because the layer is full
for layer = 1, layers - 1 do
  local known, rest = look(layer, false, open, 1, #open), {}
  for i, element in ipairs(open) do
    if not known[i] then
      rest[#rest + 1] = element
    end
  end
  open = rest
end
local capacity = tonumber(ARGV[2 + 2 * layers])
local count = struct.unpack('<I4', redis.call('GETRANGE', KEYS[layers], 38, 41))
local before_adding, at = count, 1
while at <= #open do
  local room = capacity > 0 and capacity - count or #open
  if room <= 0 then
    break
  end
  -- Each element takes at most one place, so this many cannot overfill the layer.
  local to = math.min(at + room - 1, #open)
  local known = look(layers, true, open, at, to)
  for i = at, to do
    if not known[i] then
      flags[open[i]] = '1'
      count = count + 1
    end
  end
  at = to + 1
end
for i = at, #open do
  flags[open[i]] = '-'
end
if count > before_adding then
  redis.call('SETRANGE', KEYS[layers], 38, struct.pack('<I4', math.min(count, 4294967295)))
end
return {state == 'b' and 'building' or 'ok', following, table.concat(flags)}
