-- Removes a waiting job and frees its unique key. In the list it is looked for only near the place where it was seen.
--
-- KEYS  1 the container it was found in  2 unique  3 meta
-- ARGV  1 'list' or 'zset'  2 the whole record  3 its place in the list, counted from the end, first is 1
--       4 how far from that place to look
-- Returns  1 removed, 0 it is no longer there, 2 (list only) it is not near that place
local gone = 0
if ARGV[1] == 'zset' then
  gone = redis.call('ZREM', KEYS[1], ARGV[2])
else
  -- Jobs that were added since have moved it away from the end.
  local length, place, reach = redis.call('LLEN', KEYS[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
  local last = math.max(0, length - place + 10)
  local first = math.max(0, last - reach)
  -- In growing pieces, so that large records are not all read to find one.
  local piece = 16
  while gone == 0 and last >= first do
    local from = math.max(first, last - piece + 1)
    local near = redis.call('LRANGE', KEYS[1], from, last)
    for i = #near, 1, -1 do
      if near[i] == ARGV[2] then
        redis.call('LSET', KEYS[1], from + i - 1, DELETED)
        redis.call('HINCRBY', KEYS[3], 'deleted', 1)
        gone = 1
        break
      end
    end
    last, piece = from - 1, math.min(piece * 4, 256)
  end
  if gone == 0 and first > 0 then return 2 end
end
if gone == 1 and well_formed(ARGV[2]) then free_unique(KEYS[2], ARGV[2]) end
return gone
