-- Moves an entry of a group to the dead letters; the stream keeps it for the other groups.
--
-- KEYS  1 the stream  2 dead
-- ARGV  1 group  2 id  3 reason
-- Returns  1 buried, 0 it is not pending in the group
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
redis.call('XADD', KEYS[2], '*', 'event', entry and entry[2][2] or '', 'id', ARGV[2], 'group', ARGV[1], 'reason', ARGV[3])
return 1
