-- Gives a registered worker up to `want` parked jobs of a kind that it knows. See reserve.lua for the epoch.
--
-- KEYS  1-16 as in place.lua  17 running of this worker  18 parked jobs of that kind, by their limit  19 parked
-- ARGV  1-5 as in place.lua  6 epoch  7 want  8 kind  9 how many bytes of records at most, unless the first is larger
--       10 how many jobs to skip: this worker could not decode them  11 the worker's name on the wake channel
--       12 attempts at most, for jobs that have no limit of their own
-- Returns  {0} not registered, {2} another epoch, or {1, whether there are more behind those skipped, records, now}
local running, waiting, parked = KEYS[17], KEYS[18], KEYS[19]
local epoch = redis.call('HGET', running, '')
if not epoch then return { 0 } end
if epoch ~= ARGV[6] then return { 2 } end
local now = now()
if redis.call('HEXISTS', meta, 'paused') == 1 then return { 1, 0, {}, digits(now) } end
local want, skip, bytes, given, owned, written = tonumber(ARGV[7]), tonumber(ARGV[10]), 0, {}, {}, {}
while #given < want do
  local id = redis.call('ZRANGE', waiting, skip, skip)[1]
  if not id then break end
  local record = redis.call('HGET', jobs, id)
  if record then
    if #given > 0 and bytes + #record > tonumber(ARGV[9]) then break end
    bytes = bytes + #record
    given[#given + 1] = record
    owned[#owned + 1] = delivery(record)
    owned[#owned + 1] = ARGV[12]
    written[#written + 1] = id
    written[#written + 1] = held(record, ARGV[11], now)
    local group = group_of(record)
    if group then redis.call('HINCRBY', meta, 'n:' .. group, 1) end
  end
  redis.call('ZREMRANGEBYRANK', waiting, skip, skip)
end
each_piece('HSET', running, owned)
each_piece('HSET', jobs, written)
if #given > 0 then redis.call('HINCRBY', meta, 'running', #given) end
local left = redis.call('ZCARD', waiting)
if left == 0 then redis.call('ZREM', parked, ARGV[8]) end
return { 1, left > skip and 1 or 0, given, digits(now) }
