-- Adds what an instance saw while closed, and opens the circuit if that is too much.
-- ARGV[5] generation  ARGV[6] instance  ARGV[7] outcomes, a letter each: o ok, f failed, s slow, b both
-- ARGV[8] 'count' or 'time'  ARGV[9] calls in the window, or us of a tenth of it
-- ARGV[10] calls before anything is decided  ARGV[11] failures, ARGV[12] slow calls in a million (0: never)
-- ARGV[13] instances that must have seen trouble
-- Returns {state, generation, us until the end of open}
if circuit.state ~= 'c' or circuit.gen ~= tonumber(ARGV[5]) then return describe() end
local instance, outcomes = ARGV[6], ARGV[7]
local total, failed, slow, troubled = 0, 0, 0, {}
local function count(who, calls, failures, slows)
  total, failed, slow = total + calls, failed + failures, slow + slows
  if failures + slows > 0 then troubled[who] = true end
end
if ARGV[8] == 'count' then
  for letter in string.gmatch(outcomes, '%a') do
    redis.call('RPUSH', KEYS[2], letter .. instance)
  end
  redis.call('LTRIM', KEYS[2], -ARGV[9], -1)
  for _, entry in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    local letter = string.sub(entry, 1, 1)
    count(string.sub(entry, 2), 1, (letter == 'f' or letter == 'b') and 1 or 0,
      (letter == 's' or letter == 'b') and 1 or 0)
  end
else
  local slice = math.floor(now / ARGV[9])
  local field = string.format('%.0f ', slice) .. instance
  local was = redis.call('HGET', KEYS[2], field)
  local calls, failures, slows = 0, 0, 0
  if was then calls, failures, slows = string.match(was, '^(%d+) (%d+) (%d+)$') end
  local _, f = string.gsub(outcomes, '[fb]', '')
  local _, s = string.gsub(outcomes, '[sb]', '')
  redis.call('HSET', KEYS[2], field,
    string.format('%.0f %.0f %.0f', calls + #outcomes, failures + f, slows + s))
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local at, who = string.match(all[i], '^(%d+) (.*)$')
    if at + 10 <= slice then
      redis.call('HDEL', KEYS[2], all[i])
    else
      local c, ff, ss = string.match(all[i + 1], '^(%d+) (%d+) (%d+)$')
      count(who, tonumber(c), tonumber(ff), tonumber(ss))
    end
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
local instances = 0
for _ in pairs(troubled) do instances = instances + 1 end
local failures, slows = tonumber(ARGV[11]), tonumber(ARGV[12])
local bad = failures > 0 and failed * 1000000 >= failures * total
  or slows > 0 and slow * 1000000 >= slows * total
if bad and total >= tonumber(ARGV[10]) and instances >= tonumber(ARGV[13]) then turn('o') end
return describe()
