-- Remembers which steps of a subject are done, if they are still those that the caller began with.
--
-- KEYS     1  the record
-- ARGV     1  the steps as they were read, "" for none
--          2  the steps as they are now, "" to forget the record
--          3  what the subject is
--          4  all its steps
--          5  1 if a person said what it is
-- Returns  1 if it was remembered, else 0
local was = redis.call('HGET', KEYS[1], 'steps') or ''
if was ~= ARGV[1] then
  return 0
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'steps', ARGV[2], 'kind', ARGV[3], 'plan', ARGV[4])
  if ARGV[5] == '1' then
    redis.call('HSET', KEYS[1], 'declared', 1)
  end
end
return 1
