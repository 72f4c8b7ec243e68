-- Fragment: the reservation that most workers make most of the time, with no more than it takes. There is no limit, nobody
-- asks for parked jobs, nothing but the list of ready jobs has any to hand out, and the first of them are as they were
-- enqueued. Otherwise nothing is changed here, and the rest of the script does the work. Before record.lua; KEYS, ARGV and
-- the reply are those of reserve.lua.
if ARGV[13] == '0' and ARGV[14] == '0' and ARGV[20] == '' and #ARGV == 21
  and redis.call('EXISTS', KEYS[3], KEYS[12], KEYS[14], KEYS[20]) == 0 then
  local call, sub, byte = redis.call, string.sub, string.byte
  local jobs, ready, idle, meta, running = KEYS[1], KEYS[2], KEYS[5], KEYS[6], KEYS[17]
  local want, room, attempts_at_most = tonumber(ARGV[8]), tonumber(ARGV[11]), ARGV[19]
  local time = now()
  local stamp = string.format('%016.0f', time)
  local head = 'Jx' .. ARGV[12] .. stamp
  local taken, owned, written, ids, n, bytes, full = {}, {}, {}, {}, 0, 0, false

  -- Reads the next records; false if one of them is not plain.
  local function read(count)
    local found = call('LRANGE', ready, n, n + count - 1)
    if #found == 0 then return true end
    local records = call('HMGET', jobs, unpack(found))
    for i = 1, #found do
      local record = records[i]
      if not record or #record < 67 then return false end
      -- The state, the flags and the length of the extras; a key that is held until the start is freed elsewhere.
      local first, letter = byte(record, 1, 2)
      local flags, _, _, _, _, _, _, high, low = byte(record, 57, 65)
      local name = 66 + high * 256 + low
      if first ~= 74 or letter ~= 114 or flags % 128 >= 64 or flags % 4 == 2 or name > #record
        or name + byte(record, name) > #record then
        return false
      end
      bytes = bytes + #record
      if n > 0 and bytes > room then
        full = true
        return true
      end
      n = n + 1
      local id = found[i]
      taken[n], ids[n] = record, id
      owned[2 * n - 1], owned[2 * n] = sub(record, 35, 54), attempts_at_most
      written[2 * n - 1], written[2 * n] = id, head .. sub(record, 3)
    end
    return true
  end

  local first = call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]
  local wait = first and tonumber(first) - time or -1
  local plain = (not first or wait > 0) and call('HEXISTS', meta, 'paused') == 0 and call('HGET', running, '') == ARGV[7]
  -- In growing pieces, so that a few large records are not read only to be left.
  local piece, before = 8, -1
  while plain and n < want and n > before and not full do
    before = n
    plain = read(math.min(piece, want - n, 2000))
    piece = piece * 8
  end
  if plain then
    call('ZADD', KEYS[18], string.format('%.0f', time + ARGV[9]), ARGV[6])
    if n > 0 then
      call('LTRIM', ready, n, -1)
      for from = 1, 2 * n, 4000 do
        local to = math.min(from + 3999, 2 * n)
        call('HSET', running, unpack(owned, from, to))
        call('HSET', jobs, unpack(written, from, to))
      end
      call('HINCRBY', meta, 'running', n)
      if ARGV[3] ~= '0' then
        call('XADD', KEYS[16], 'MAXLEN', '~', ARGV[3], '*', 'event', 'started', 'jobs', table.concat(ids), 'text', ARGV[12])
      end
    end
    if full or n == want then
      call('ZREM', idle, ARGV[6])
      return { 1, 0, taken, stamp, 0 }
    end
    call('ZADD', idle, stamp, ARGV[6])
    return { 1, wait, taken, stamp, 0 }
  end
end
