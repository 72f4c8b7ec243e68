-- Sets and deletes single fields of a session and renews its idle timeout. A session that is gone stays gone.
--
-- KEYS  1 the session, a hash  2 the index of its account, a sorted set
-- ARGV  1 idle timeout  2 idle timeout of a remembered session  3 slack: a renewal this soon after the last is left
--       out (all in microseconds)  4 the id of the session  5 digest of the token  6 most fields  7 most bytes
--       8 number of fields to set, then these fields and values, then the fields to delete
-- Returns  1 done, 0 the session is gone or the token is not its own, 2 it would be too large
local session = open(KEYS[1], KEYS[2], ARGV[4], ARGV[5])
if not session then return 0 end
local count, bytes = string.match(redis.call('HGET', KEYS[1], 'size'), '^(%d+) (%d+)$')
count, bytes = tonumber(count), tonumber(bytes)
local last = 8 + 2 * tonumber(ARGV[8])
for i = 9, #ARGV do
    local set = i <= last
    if not set or i % 2 == 1 then
        local old = redis.call('HGET', KEYS[1], ARGV[i])
        if old then
            count = count - 1
            bytes = bytes - #ARGV[i] - #old
        end
        if set then
            count = count + 1
            bytes = bytes + #ARGV[i] + #ARGV[i + 1]
        end
    end
end
if count > tonumber(ARGV[6]) or bytes > tonumber(ARGV[7]) then return 2 end
if last > 8 then redis.call('HSET', KEYS[1], unpack(ARGV, 9, last)) end
if last < #ARGV then redis.call('HDEL', KEYS[1], unpack(ARGV, last + 1)) end
redis.call('HSET', KEYS[1], 'size', string.format('%.0f %.0f', count, bytes))
renew(KEYS[1], KEYS[2], ARGV[4], session, ARGV[1], ARGV[2], ARGV[3])
return 1
