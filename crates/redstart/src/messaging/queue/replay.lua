-- Makes dead letters ready again, with all their attempts. A letter stays if its record is corrupt or another job
-- holds its unique key.
--
-- KEYS  1 dead  2 ready  3 ranked  4 idle  5 unique
-- ARGV  1 wake channel  2 boost in microseconds  3... letters
-- Returns  how many were made ready
local now = now()
local again, letters = {}, {}
for i = 3, #ARGV do
  local found = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  local record = found and found[2][2]
  if record and well_formed(record) then
    local free = true
    if uniqueness(record) ~= 0 then
      free = redis.call('HSETNX', KEYS[5], unique_key(record), sub(record, 18, 33)) == 1
    end
    if free then
      record = handed_back(ready_at(record, now))
      again[#again + 1] = sub(record, 1, 33) .. pair(0) .. sub(record, 36)
      letters[#letters + 1] = ARGV[i]
    end
  end
end
make_ready('RPUSH', KEYS[2], KEYS[3], tonumber(ARGV[2]), again)
each_piece('XDEL', KEYS[1], letters)
wake(KEYS[4], ARGV[1], #again)
return #again
