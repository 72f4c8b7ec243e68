-- Adds what an instance saw while closed to a window of the last calls, and opens the circuit if that is too much.
-- After now.lua, circuit.lua, which states KEYS and ARGV[1-4], and judge.lua, which states ARGV[8-11].
--
-- The work grows with the new outcomes, not with the window: sums are kept, and each new call pushes one old one out.
--
-- KEYS     2  window (list of reports, oldest first: "outcomes instance")
--          4  trouble (hash: gen, calls, failed, slow of the window; "i<instance>" -> its calls with trouble)
-- ARGV     5  generation
--          6  instance
--          7  outcomes, a letter each: o ok, f failed, s slow, b both; at most 250
--          12 calls in the window
-- Returns  {state, generation, us until the end of open}
if circuit.state ~= 'c' or circuit.gen ~= tonumber(ARGV[5]) then return describe() end
local sums = redis.call('HMGET', KEYS[4], 'gen', 'calls', 'failed', 'slow')
if sums[1] ~= ARGV[5] then
  redis.call('UNLINK', KEYS[2], KEYS[4])
  sums = { ARGV[5], 0, 0, 0 }
end
local calls, failed, slow = tonumber(sums[2]), tonumber(sums[3]), tonumber(sums[4])

local function count(instance, outcomes, sign)
  local _, f = string.gsub(outcomes, '[fb]', '')
  local _, s = string.gsub(outcomes, '[sb]', '')
  local _, trouble = string.gsub(outcomes, '[fsb]', '')
  calls, failed, slow = calls + sign * #outcomes, failed + sign * f, slow + sign * s
  if trouble > 0 and redis.call('HINCRBY', KEYS[4], 'i' .. instance, sign * trouble) <= 0 then
    redis.call('HDEL', KEYS[4], 'i' .. instance)
  end
end

if redis.call('RPUSH', KEYS[2], ARGV[7] .. ' ' .. ARGV[6]) == 1 and calls > 0 then
  -- The list was evicted: the sums are those of calls that cannot be pushed out any more.
  redis.call('UNLINK', KEYS[4])
  calls, failed, slow = 0, 0, 0
end
count(ARGV[6], ARGV[7], 1)
local over = calls - ARGV[12]
while over > 0 do
  local old, instance = string.match(redis.call('LINDEX', KEYS[2], 0), '^(%a+) (.*)$')
  if #old <= over then
    redis.call('LPOP', KEYS[2])
  else
    redis.call('LSET', KEYS[2], 0, string.sub(old, over + 1) .. ' ' .. instance)
    old = string.sub(old, 1, over)
  end
  count(instance, old, -1)
  over = over - #old
end
redis.call('HSET', KEYS[4], 'gen', ARGV[5], 'calls', calls, 'failed', failed, 'slow', slow)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[4], ARGV[2])
return judge(calls, failed, slow, redis.call('HLEN', KEYS[4]) - 4)
