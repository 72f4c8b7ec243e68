-- Loans whose process may have died: older than the given age.
-- KEYS    loans
-- ARGV    age in us
-- Returns token, units, bucket, token, ...
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = {}
local loans = redis.call('HGETALL', KEYS[1])
for i = 1, #loans, 2 do
  local qty, to, since = string.match(loans[i + 1], '^(%d+) (%d+) (%d+)$')
  if now - since >= tonumber(ARGV[1]) then
    found[#found + 1], found[#found + 2], found[#found + 3] = loans[i], qty, to
  end
end
return found
