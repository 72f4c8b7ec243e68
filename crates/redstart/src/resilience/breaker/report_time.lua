-- Adds what an instance saw while closed to a window of time, and opens the circuit if that is too much.
-- After now.lua, circuit.lua, which states KEYS and ARGV[1-4], and judge.lua, which states ARGV[8-11].
--
-- KEYS     2  window (hash: gen; number of a slice, a tenth of the window -> "calls failed slow"; at most 20 slices)
--          4  trouble (sorted set: instance -> us at which it last reported trouble)
-- ARGV     5  generation
--          6  instance
--          7  outcomes, summed up: "calls failed slow"
--          12 us of a slice
-- Returns  {state, generation, us until the end of open}
if circuit.state ~= 'c' or circuit.gen ~= tonumber(ARGV[5]) then return describe() end
if redis.call('HGET', KEYS[2], 'gen') ~= ARGV[5] then
  redis.call('UNLINK', KEYS[2], KEYS[4])
  redis.call('HSET', KEYS[2], 'gen', ARGV[5])
end
local slice = math.floor(at / ARGV[12])
local field = string.format('%.0f', slice)
local function numbers(text)
  local calls, failed, slow = string.match(text, '^(%d+) (%d+) (%d+)$')
  return tonumber(calls), tonumber(failed), tonumber(slow)
end
local calls, failed, slow = numbers(ARGV[7])
if failed + slow > 0 then
  redis.call('ZADD', KEYS[4], string.format('%.0f', at), ARGV[6])
  redis.call('PEXPIRE', KEYS[4], ARGV[2])
end
-- Instances whose trouble is older than the window do not count; a few of them are removed each time.
local edge = string.format('%.0f', (slice - 9) * ARGV[12])
local quiet = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. edge, 'LIMIT', 0, 100)
if #quiet > 0 then redis.call('ZREM', KEYS[4], unpack(quiet)) end
local c, f, s = numbers(redis.call('HGET', KEYS[2], field) or '0 0 0')
redis.call('HSET', KEYS[2], field, string.format('%.0f %.0f %.0f', c + calls, f + failed, s + slow))
calls, failed, slow = 0, 0, 0
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  if all[i] ~= 'gen' then
    if all[i] + 10 <= slice then
      redis.call('HDEL', KEYS[2], all[i])
    else
      c, f, s = numbers(all[i + 1])
      calls, failed, slow = calls + c, failed + f, slow + s
    end
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return judge(calls, failed, slow, redis.call('ZCOUNT', KEYS[4], edge, '+inf'))
