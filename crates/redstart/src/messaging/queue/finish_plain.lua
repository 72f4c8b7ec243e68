-- Fragment: what most batches of endings are, with no more than it takes: all jobs are done and leave nothing but their
-- record, nobody waits for a place and none is to be cancelled. Otherwise the rest of the script does the work: it looks at
-- the records if some deliveries are gone. After now.lua and tally.lua, before record.lua; KEYS and ARGV are those of
-- finish.lua.
local count = tonumber(ARGV[10])
if count > 0 and count <= 1000 and ARGV[11 + count] == '0' then
  local call, meta, marks = redis.call, KEYS[6], redis.call('HMGET', KEYS[6], 'cancels', 'hungry')
  -- Whoever holds them all is registered.
  if not marks[1] and not marks[2] and call('HDEL', KEYS[17], unpack(ARGV, 11, 10 + count)) == count then
    local ids = {}
    for i = 1, count do ids[i] = string.sub(ARGV[10 + i], 1, 16) end
    call('HDEL', KEYS[1], unpack(ids))
    if call('HINCRBY', meta, 'running', -count) <= 0 then call('HDEL', meta, 'running') end
    if ARGV[3] ~= '0' then
      call('XADD', KEYS[16], 'MAXLEN', '~', ARGV[3], '*', 'event', 'done', 'jobs', table.concat(ids), 'text', ARGV[7])
    end
    if ARGV[12 + count] ~= '0' then tally(KEYS[19], KEYS[20], now(), tonumber(ARGV[9]), 13 + count, #ARGV) end
    return 1
  end
end
