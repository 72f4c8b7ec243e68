-- Makes a session.
--
-- KEYS  1 the session, a hash  2 the index of its account, a sorted set
-- ARGV  1 idle timeout  2 absolute timeout (both in microseconds)  3 the id of the session
--       4 user ('' for an anonymous session)  5 digest of the token  6 label ('' for none)  7 '1' for a remembered
--       session, otherwise ''  8 count and bytes of the fields, as in '3 57'  9... fields and values
-- Returns  1
local time = now()
local last = time + ARGV[2]
local ends = math.min(time + ARGV[1], last)
local fields = { 'user', ARGV[4], 'token', ARGV[5], 'size', ARGV[8], 'created', string.format('%.0f', time),
    'seen', string.format('%.0f', time), 'ends', string.format('%.0f', ends), 'until', string.format('%.0f', last) }
if ARGV[6] ~= '' then
    fields[#fields + 1] = 'label'
    fields[#fields + 1] = ARGV[6]
end
if ARGV[7] ~= '' then
    fields[#fields + 1] = 'remembered'
    fields[#fields + 1] = ARGV[7]
end
for i = 9, #ARGV do fields[#fields + 1] = ARGV[i] end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(ends / 1000)))
if ARGV[4] ~= '' then enlist(KEYS[2], ARGV[3], ends, last, time) end
return 1
