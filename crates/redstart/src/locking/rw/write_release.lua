-- Lets a writer out, or out of the line, and wakes those who wait.
--
-- KEYS     1  the writer (string: the owner's token)
--          2  unused here: the readers
--          3  the writers that wait (sorted set: token -> end of its lease in us)
-- ARGV     1  the writer's token
--          2  the channel on which waiters listen
-- Returns  1 if it was the owner's, else 0
local left = redis.call('ZREM', KEYS[3], ARGV[1])
local held = redis.call('GET', KEYS[1]) == ARGV[1]
if held then
  redis.call('DEL', KEYS[1])
end
if held or left == 1 then
  redis.call('SPUBLISH', ARGV[2], '')
end
return held and 1 or 0
