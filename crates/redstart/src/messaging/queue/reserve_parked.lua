-- Gives a registered worker up to `want` parked jobs of a kind that it knows. See reserve.lua for the epoch.
--
-- KEYS  1 parked jobs of that kind, by their limit  2 parked  3 running of this worker  4 meta
-- ARGV  1 epoch  2 want  3 kind  4 how many bytes of records at most, unless the first is larger
--       5 how many jobs to skip: this worker could not decode them
-- Returns  {0} not registered, {2} another epoch, or {1, whether there are more behind those skipped, records}
local epoch = redis.call('HGET', KEYS[3], '')
if not epoch then return { 0 } end
if epoch ~= ARGV[1] then return { 2 } end
if redis.call('HEXISTS', KEYS[4], 'paused') == 1 then return { 1, 0, {} } end
local want, skip, bytes, given, owned = tonumber(ARGV[2]), tonumber(ARGV[5]), 0, {}, {}
while #given < want do
  local record = redis.call('ZRANGE', KEYS[1], skip, skip)[1]
  if not record or (#given > 0 and bytes + #record > tonumber(ARGV[4])) then break end
  redis.call('ZREMRANGEBYRANK', KEYS[1], skip, skip)
  bytes = bytes + #record
  given[#given + 1] = record
  owned[#owned + 1] = delivery(record)
  owned[#owned + 1] = record
end
each_piece('HSET', KEYS[3], owned)
local left = redis.call('ZCARD', KEYS[1])
if left == 0 then redis.call('ZREM', KEYS[2], ARGV[3]) end
return { 1, left > skip and 1 or 0, given }
