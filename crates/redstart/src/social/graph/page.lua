-- Reads a page, the newest first, and says which of it another set has.
-- KEYS[1] the set, account -> when  KEYS[2] the other set, if any
-- ARGV[1] when and ARGV[2] who the last page ended with, '' for the first page  ARGV[3] how many
-- Returns {account, when, 1 if the other set has it} of each
local n, from = tonumber(ARGV[3]), 0

if ARGV[1] ~= '' then
  local rank = redis.call('ZREVRANK', KEYS[1], ARGV[2])
  if rank and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2])) == tonumber(ARGV[1]) then
    from = rank + 1
  else
    -- It is gone or came anew: go on behind its place. Equal times are ordered by name, backwards.
    from = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[1], '+inf')
    while true do
      local next_one = redis.call('ZREVRANGE', KEYS[1], from, from, 'WITHSCORES')
      if #next_one == 0 or tonumber(next_one[2]) < tonumber(ARGV[1]) or smaller(next_one[1], ARGV[2]) then
        break
      end
      from = from + 1
    end
  end
end
local rows = redis.call('ZREVRANGE', KEYS[1], from, from + n - 1, 'WITHSCORES')
local reply = {}
for i = 1, #rows, 2 do
  local has = KEYS[2] and redis.call('ZSCORE', KEYS[2], rows[i]) and 1 or 0
  reply[#reply + 1] = {rows[i], rows[i + 1], has}
end
return reply
