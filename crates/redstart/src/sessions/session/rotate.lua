-- Gives a session another token. Those before it open the session for a short grace, without the rights of an elevation,
-- and cannot be rotated again. The last eight are kept.
--
-- KEYS  1 the session, a hash  2 the index of its account, a sorted set
-- ARGV  1 the id of the session  2 digest of the token  3 digest of the new token  4 grace in microseconds
--       5 how long the session is elevated from now on in microseconds, or '' to leave that as it is
-- Returns  1 rotated, 0 the session is gone or the token is not its own, 2 another call has just rotated it
if redis.call('HGET', KEYS[1], 'token') == ARGV[3] then return 1 end -- sent again after a lost reply
local session = open(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
if not session then return 0 end
if not session.current then return 2 end
local previous = table.concat(session.previous, ' ')
if ARGV[4] ~= '0' then previous = ARGV[2] .. string.format(' %.0f ', session.time + ARGV[4]) .. previous end
redis.call('HSET', KEYS[1], 'token', ARGV[3], 'previous', previous)
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'elevated', string.format('%.0f', session.time + ARGV[5])) end
return 1
