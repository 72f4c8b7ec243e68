-- Ends a write: stores its value if it is the newest, or removes what is cached, and lifts the writer's fence.
--
-- KEYS[1] the entry
-- KEYS[2] the lease
-- KEYS[3] the fence
-- KEYS[4] the caller's entry beside one of another fingerprint
-- ARGV[1] the writer's token
-- ARGV[2] 'set', 'remove', or 'doubt': nobody knows whether the row was changed, so the fence stays
-- ARGV[3] the entry, for 'set'
-- ARGV[4] how long it is kept, ms
-- ARGV[5] the row's version, 8 bytes, big-endian; '' if it has none
-- ARGV[6] the channel that wakes waiting processes
-- ARGV[7] the classic channel that tells first levels
-- ARGV[8] the message for it
--
-- Returns 'set'      the value is stored
--         'older'    a newer one was there or had been
--         'removed'  nothing is cached now
local function newer(a, b)
  if not b or #b ~= 8 then
    return true
  end
  for i = 1, 8 do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x > y
    end
  end
  return false
end

local member = 'w:' .. ARGV[1]
local time = now()
-- One that has ended protects nothing, also if others keep the key: a newer row may have been committed since by a writer that died.
local mine = tonumber(redis.call('ZSCORE', KEYS[3], member) or 0) > time
if ARGV[2] ~= 'doubt' then
  redis.call('ZREM', KEYS[3], member)
end

-- Fences of writers that died must not outlive their own time because others write on. They do not count, and up to 100
-- of them are removed.
local present = string.format('%.0f', time)
local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', present, 'LIMIT', 0, 100)
if #ended > 0 then
  redis.call('ZREM', KEYS[3], unpack(ended))
end
local others = redis.call('ZCOUNT', KEYS[3], '(' .. present, '(inf')
-- When the first and the last of them end.
local first = tonumber(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. present, '(inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or 0)
local last = tonumber(redis.call('ZREVRANGEBYSCORE', KEYS[3], '(inf', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or 0)

local highest = redis.call('ZRANGEBYSCORE', KEYS[3], 'inf', 'inf', 'LIMIT', 0, 1)[1]
local max = highest and string.sub(highest, 3)
local function raise(version)
  if highest then
    redis.call('ZREM', KEYS[3], highest)
  end
  redis.call('ZADD', KEYS[3], 'inf', 'm:' .. version)
end

-- The version of the entry, whatever its fingerprint.
local head = redis.call('GETRANGE', KEYS[1], 0, 19)
local stored = string.sub(head, 1, 3) == 'RC\1' and string.sub(head, 13, 20)

-- Ours beside it is older than this write.
redis.call('UNLINK', KEYS[4])
local outcome = 'removed'
if ARGV[2] == 'set' and mine then
  if newer(ARGV[5], max) and newer(ARGV[5], stored) then
    local keep = tonumber(ARGV[4])
    -- Any other writer may have committed a newer row and die before it says so.
    if others > 0 then
      keep = math.max(1, math.min(keep, math.ceil((first - time) / 1000)))
    end
    redis.call('SET', KEYS[1], ARGV[3], 'PX', string.format('%.0f', keep))
    raise(ARGV[5])
    outcome = 'set'
  else
    outcome = 'older'
  end
else
  redis.call('UNLINK', KEYS[1])
  redis.call('UNLINK', KEYS[2])
  if others > 0 then
    -- Writers that are still under way must not store a row from before this change. Without a version
    -- nobody can say which is newer, so none of them may.
    if ARGV[5] == '' then
      raise(string.rep('\255', 8))
    elseif newer(ARGV[5], max) then
      raise(ARGV[5])
    end
  end
end

if others == 0 then
  redis.call('UNLINK', KEYS[3])
else
  redis.call('PEXPIREAT', KEYS[3], string.format('%.0f', math.ceil(last / 1000)))
end
redis.call('SPUBLISH', ARGV[6], 'settled')
redis.call('PUBLISH', ARGV[7], ARGV[8])
return outcome
