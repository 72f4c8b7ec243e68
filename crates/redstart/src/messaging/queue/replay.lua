-- Makes dead letters ready again, with all their attempts. A letter stays if its record is corrupt or another job
-- holds its unique key.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6... job ids
-- Returns  how many were made ready
local now = now()
local again, letters = {}, {}
for i = 6, #ARGV do
  local record = redis.call('ZSCORE', dead, ARGV[i]) and redis.call('HGET', jobs, ARGV[i])
  if record and well_formed(record) and state(record) == 'z' then
    local free = true
    if uniqueness(record) == 1 or uniqueness(record) == 2 then
      free = redis.call('HSETNX', unique, extra(record, 'u'), ARGV[i]) == 1
    end
    if free then
      -- What became of its children stays.
      if flag(record, 8) then each_piece('HDEL', details, detail_fields(record)) end
      record = handed_back(without_flag(as(record, 'r', now), 8))
      again[#again + 1] = with_attempts(record, 0)
      letters[#letters + 1] = ARGV[i]
    end
  end
end
make_ready('RPUSH', again)
each_piece('ZREM', dead, letters)
wake(#again)
return #again
