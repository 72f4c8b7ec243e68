-- Makes dead letters ready again, with all their attempts; a parent waits again for the children that are not over. A
-- letter stays if its record is corrupt or another job holds its unique key.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6... job ids
-- Returns  {how many were replayed, how many were looked at: as many as one script should}
local now = now()
local again, letters, looked = {}, {}, 0

-- What failed the parent was not counted, so the parent hears how it ends this time.
local function forgiven(record)
  local link = flag(record, 64) and extra(record, 'p')
  if link and sub(link, 17, 17) == 'f' then return without_flag(record, 128) end
  return record
end

for i = 6, #ARGV do
  if is_enough() then break end
  looked, spent = looked + 1, spent + 20
  local record = redis.call('ZSCORE', dead, ARGV[i]) and redis.call('HGET', jobs, ARGV[i])
  if record and well_formed(record) and state(record) == 'z' then
    local free = true
    if uniqueness(record) == 1 or uniqueness(record) == 2 then
      free = redis.call('HSETNX', unique, extra(record, 'u'), ARGV[i]) == 1
    end
    if free then
      -- What became of its children stays.
      if flag(record, 8) then each_piece('HDEL', details, detail_fields(record)) end
      record = forgiven(with_attempts(handed_back(without_flag(as(record, 'r', now), 8)), 0))
      -- It would have expired long ago.
      if flag(record, 64) and extra(record, 'e') then record = as_enqueued_now(record, now) end
      if redis.call('HEXISTS', details, ARGV[i] .. 'w') == 1 then
        redis.call('HSET', jobs, ARGV[i], as(record, 'w', now))
        redis.call('ZADD', parents, '+inf', ARGV[i])
      else
        again[#again + 1] = record
      end
      letters[#letters + 1] = ARGV[i]
    end
  end
end
make_ready('RPUSH', again)
each_piece('ZREM', dead, letters)
wake(#again)
return { #letters, looked }
