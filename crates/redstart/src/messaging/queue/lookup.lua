-- Reads a job and all that is known of it.
--
-- KEYS  1-16 as in place.lua
-- ARGV  1-5 as in place.lua  6 the job's id
-- Returns  {} unknown, or {record, progress, why it is dead, result, attempts from the oldest, lines of its log}
local id, from = ARGV[6], details
local record = redis.call('HGET', jobs, id)
if not record then
  record, from = redis.call('HGET', ended, id), ended
end
if not record or not well_formed(record) then return {} end
local whole = record
if state(record) == 'x' then record = released(record) end
local function list(letter, count, kept)
  local fields = {}
  for i = math.max(0, count - kept), count - 1 do fields[#fields + 1] = id .. letter .. (i % kept) end
  local found = {}
  if #fields > 0 then
    for _, value in ipairs(redis.call('HMGET', from, unpack(fields))) do found[#found + 1] = value or '' end
  end
  return found
end
local found = redis.call('HMGET', from, id .. 'p', id .. 'x', id .. 'r', id .. 'n')
-- A job that is done or cancelled was mostly not charged for its last attempt. In the place of that one, an older attempt may
-- be left: what began before the last one that was charged is not newer.
local tried = attempts(record)
local over = state(whole) == 'd' or state(whole) == 'c'
if over then
  local last = redis.call('HMGET', from, id .. 'a' .. (tried % KEPT_ATTEMPTS), id .. 'a' .. ((tried - 1) % KEPT_ATTEMPTS))
  if last[1] and (tried < KEPT_ATTEMPTS or not last[2] or sub(last[1], 1, 32) > sub(last[2], 1, 32)) then tried = tried + 1 end
end
return { whole, found[1], found[2], found[3], list('a', tried, KEPT_ATTEMPTS), list('l', tonumber(found[4] or 0), KEPT_LINES) }
