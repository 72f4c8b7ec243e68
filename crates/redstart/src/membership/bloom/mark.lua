-- Moves a partition from one state to another: o(pen), b(uilding a generation that takes adds too), m(oved).
-- KEYS[1] the first layer, or the header
-- ARGV[1] the configuration  ARGV[2] the states it may be in  ARGV[3] the generation it must name
-- ARGV[4] the new state  ARGV[5] the generation it names then
-- ARGV[6] 1 if one that has moved to a generation that the root does not name, or that is missing, is no obstacle
-- Returns 1 if it is in the new state or no obstacle, 0 if not
local head = redis.call('GETRANGE', KEYS[1], 0, 45)
if #head == 0 then
  return tonumber(ARGV[6])
end
if #head < 46 or string.sub(head, 1, 36) ~= ARGV[1] then
  return 0
end
local state, following = string.sub(head, 37, 37), struct.unpack('<I4', head, 43)
local wanted, named = tonumber(ARGV[3]), tonumber(ARGV[5])
if state == ARGV[4] and following == named then
  return 1
end
if state == 'm' and ARGV[6] == '1' then
  -- Calls about its elements fail until the rebuild has ended, when they are sent to the next generation.
  if ARGV[4] == 'm' then
    redis.call('SETRANGE', KEYS[1], 42, struct.pack('<I4', named))
  end
  return 1
end
if not string.find(ARGV[2], state, 1, true) or following ~= wanted then
  return 0
end
redis.call('SETRANGE', KEYS[1], 36, ARGV[4])
redis.call('SETRANGE', KEYS[1], 42, struct.pack('<I4', named))
return 1
