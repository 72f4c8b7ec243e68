-- Reads which generations the root names. It is sent behind the scripts of every call: if the root was evicted, or
-- names another generation than the one that was asked, what that one answered does not count.
-- KEYS[1] the root
-- ARGV    none
-- Returns {'root', 0, the current and the next generation, separated by a line feed}; both empty without a root
local row = redis.call('HMGET', KEYS[1], 'current', 'next')
return {'root', 0, (row[1] or '') .. '\n' .. (row[2] or '')}
