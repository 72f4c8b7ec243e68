-- Removes a writer, or a waiting writer, and wakes the waiters.
--
-- KEYS     1  the writer (string: the owner's token)
--          2  unused here: the readers
--          3  the waiting writers (sorted set: token -> end of its lease in us)
--          4  unused here: the last fence token
-- ARGV     1  the writer's token
--          2  the channel on which waiters listen
-- Returns  1 if the lock was the writer's, else 0
local left = redis.call('ZREM', KEYS[3], ARGV[1])
local held = redis.call('GET', KEYS[1]) == ARGV[1]
if held then
  redis.call('DEL', KEYS[1])
end
if held or left == 1 then
  redis.call('SPUBLISH', ARGV[2], '')
end
return held and 1 or 0
