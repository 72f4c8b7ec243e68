-- Lists the cron entries that are due.
--
-- KEYS  1 cron  2 cron entries
-- Returns  {now in microseconds, then id, tick and definition of each entry}
local now = now()
local found = redis.call('ZRANGE', KEYS[1], '-inf', format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 32, 'WITHSCORES')
local reply = { format('%.0f', now) }
for i = 1, #found, 2 do
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = format('%.0f', tonumber(found[i + 1]))
  reply[#reply + 1] = redis.call('HGET', KEYS[2], found[i]) or ''
end
return reply
