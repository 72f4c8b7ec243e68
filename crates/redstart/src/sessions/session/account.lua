-- Finds the account of a user: random text that stands for the user in keys and tokens. A missing one is made.
--
-- KEYS  1 the account of the user, a string
-- ARGV  1 the account to use if there is none  2 how long it has to last from now on, in milliseconds
-- Returns  the account
local account = redis.call('GET', KEYS[1])
if not account then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return ARGV[1]
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return account
