-- Renews the idle timeout of a session that was read, never beyond the absolute one.
--
-- KEYS  1 the session, a hash  2 the index of its account, a sorted set
-- ARGV  1 idle timeout  2 idle timeout of a remembered session  3 slack: a renewal this soon after the last is left
--       out (all in microseconds)  4 the id of the session  5 digest of the token
-- Returns  false if the session is gone or the token is not its own, otherwise the microseconds that it has left
local session = open(KEYS[1], KEYS[2], ARGV[4], ARGV[5])
if not session then return false end
return string.format('%.0f', renew(KEYS[1], KEYS[2], ARGV[4], session, ARGV[1], ARGV[2], ARGV[3]) - session.time)
