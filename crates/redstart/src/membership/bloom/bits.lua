-- Fragment in front of add.lua and contains.lua: checks the partition and reads bits.
-- KEYS[1..l] the layers of the partition, the oldest first
-- ARGV[1] l  ARGV[2..l+1] their configurations  ARGV[l+2..2l+1] their numbers of hashes
-- ARGV[2l+2] the capacity of the last layer, 0 for unlimited
-- ARGV[2l+3..] for each element, for each layer, the offsets of its bits
-- Returns {what, number, flags}: 'ok'; 'building' with the generation that takes adds too; 'moved' with the
-- generation that took over; 'layers' with their actual number; 'missing'; 'other' for another configuration
local layers = tonumber(ARGV[1])
local head = redis.call('GETRANGE', KEYS[1], 0, 45)
if #head < 46 then
  return {'missing', 0, ''}
end
if string.sub(head, 1, 36) ~= ARGV[2] then
  return {'other', 0, ''}
end
local state, following = string.sub(head, 37, 37), struct.unpack('<I4', head, 43)
if state == 'm' then
  return {'moved', following, ''}
end
if string.byte(head, 38) ~= layers then
  return {'layers', string.byte(head, 38), ''}
end
for layer = 2, layers do
  local config = redis.call('GETRANGE', KEYS[layer], 0, 35)
  if config == '' then
    return {'missing', 0, ''}
  end
  if config ~= ARGV[1 + layer] then
    return {'other', 0, ''}
  end
end

local hashes, before, width = {}, {}, 0
for layer = 1, layers do
  hashes[layer], before[layer] = tonumber(ARGV[1 + layers + layer]), width
  width = width + hashes[layer]
end
local first = 3 + 2 * layers
local total = (#ARGV - first + 1) / width

-- For the elements at list[from..to]: whether all of their bits in the layer were set; sets them too if asked.
local function look(layer, set, list, from, to)
  local known, k = {}, hashes[layer]
  -- Lua can pass some 8,000 arguments to a function; a bit takes up to four.
  local at_once = math.max(1, math.floor(1700 / k))
  for start = from, to, at_once do
    local last = math.min(start + at_once - 1, to)
    local call, n = {set and 'BITFIELD' or 'BITFIELD_RO', KEYS[layer]}, 2
    for i = start, last do
      local base = first + (list[i] - 1) * width + before[layer]
      for offset = base, base + k - 1 do
        if set then
          call[n + 1], call[n + 2], call[n + 3], call[n + 4] = 'SET', 'u1', ARGV[offset], '1'
          n = n + 4
        else
          call[n + 1], call[n + 2], call[n + 3] = 'GET', 'u1', ARGV[offset]
          n = n + 3
        end
      end
    end
    local bits, at = redis.call(unpack(call)), 0
    for i = start, last do
      local all = true
      for hash = 1, k do
        all = all and bits[at + hash] == 1
      end
      at = at + k
      known[i] = all
    end
  end
  return known
end

local flags, open = {}, {}
for element = 1, total do
  flags[element], open[element] = '0', element
end
