-- Fragment: the history of a queue.
--
-- Defines  tally(history, tallies, time, keep, first, last): adds ARGV[first .. last], each a name and an amount, to the
--          counters of this minute, and removes those that are older than `keep` minutes
local function tally(history, tallies, time, keep, first, last)
  local minute = math.floor(time / 60000000)
  local prefix = string.format('%.0f', minute) .. '|'
  for i = first, last, 2 do
    local name = prefix .. ARGV[i]
    local amount = tonumber(ARGV[i + 1])
    if redis.call('HINCRBY', tallies, name, amount) == amount then redis.call('ZADD', history, minute, name) end
  end
  local old = redis.call('ZRANGE', history, '-inf', minute - keep, 'BYSCORE', 'LIMIT', 0, 200)
  if #old > 0 then
    redis.call('HDEL', tallies, unpack(old))
    redis.call('ZREM', history, unpack(old))
  end
end
