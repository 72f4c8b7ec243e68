-- Takes over entries that were delivered and not acknowledged for a while. Entries that were delivered too often
-- become dead letters.
--
-- KEYS  1 the stream  2 dead
-- ARGV  1 group  2 consumer  3 idle time in milliseconds  4 how many at most  5 deliveries at most
-- Returns  {how many died, then id and event for each entry that was taken over}
local reply = { 0 }
local stale = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', ARGV[4])
for _, pending in ipairs(stale) do
  local id = pending[1]
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if not entry then
    -- It was deleted: there is nothing left to deliver.
    redis.call('XACK', KEYS[1], ARGV[1], id)
  elseif pending[4] >= tonumber(ARGV[5]) then
    redis.call('XADD', KEYS[2], '*', 'event', entry[2][2], 'id', id, 'group', ARGV[1], 'reason', 'delivered too often')
    redis.call('XACK', KEYS[1], ARGV[1], id)
    reply[1] = reply[1] + 1
  else
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)
    reply[#reply + 1] = id
    reply[#reply + 1] = entry[2][2]
  end
end
return reply
