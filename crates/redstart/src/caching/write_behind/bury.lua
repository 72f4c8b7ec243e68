-- Stores writes that cannot be applied as dead letters, and blocks their keys.
--
-- Letters may come in any order and more than once: the first content stays.
--
-- KEYS[1] names of all dead letters: a sorted set, all scores 0
-- KEYS[2] contents of the letters: a hash of name -> reason, line feed, bytes of the write
-- KEYS[3] blocked keys: a hash of key -> padded id of its first dead write
-- ARGV    for each letter: key, padded id, name of the letter, content
--
-- Returns how many letters are new
local new = 0
for i = 1, #ARGV, 4 do
  local key, id, name = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local first = redis.call('HGET', KEYS[3], key)
  if not first or id < first then
    redis.call('HSET', KEYS[3], key, id)
  end
  new = new + redis.call('ZADD', KEYS[1], 'NX', 0, name)
  redis.call('HSETNX', KEYS[2], name, ARGV[i + 3])
end
return new
