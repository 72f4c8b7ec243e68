-- Reads a page, the newest first, and says which of its accounts another set contains.
-- KEYS[1] the set, account -> time  KEYS[2] the other set, if any
-- ARGV[1] time and ARGV[2] account that the previous page ended with, '' for the first page  ARGV[3] how many
-- Returns {account, time, 1 if the other set contains it else 0} of each
local n, from = tonumber(ARGV[3]), 0
if ARGV[1] ~= '' then
  local before, met = position(KEYS[1], true, ARGV[1], ARGV[2])
  from = before + met
end
local rows = redis.call('ZREVRANGE', KEYS[1], from, from + n - 1, 'WITHSCORES')
local reply = {}
for i = 1, #rows, 2 do
  local has = KEYS[2] and redis.call('ZSCORE', KEYS[2], rows[i]) and 1 or 0
  reply[#reply + 1] = {rows[i], rows[i + 1], has}
end
return reply
