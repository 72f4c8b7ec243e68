-- Around a script: counts its work instead of the time that it takes, which depends on the machine.
--
-- A command costs one, and one more for each word after its key, for each element that it returns, and for each 4 KiB that
-- it reads. What a command visits without saying so is added: the members that it removes by a range, the elements of a
-- collection that it deletes or searches, the offset of a LIMIT. UNLINK frees memory in the background.
local server, work = redis, 0

local function weigh(value)
  if type(value) == 'table' then
    local sum = 0
    for i = 1, #value do
      sum = sum + weigh(value[i])
    end
    return sum
  end
  return 1 + (type(value) == 'string' and math.floor(#value / 4096) or 0)
end

local function size(key)
  local lengths = { list = 'LLEN', hash = 'HLEN', set = 'SCARD', zset = 'ZCARD', stream = 'XLEN' }
  local length = lengths[server.call('TYPE', key).ok]
  return length and server.call(length, key) or 0
end

local function bytes(key)
  return math.floor(server.call('STRLEN', key) / 4096)
end

local function sum(of, keys, first)
  local total = 0
  for i = first, #keys do
    total = total + of(keys[i])
  end
  return total
end

-- What is visited and not seen in the words of a command or in its reply, before it is called.
local unseen = {
  BITCOUNT = function(words) return bytes(words[2]) end,
  BITOP = function(words) return sum(bytes, words, 4) end,
  DEL = function(words) return sum(size, words, 2) end,
  GEOSEARCH = function(words) return size(words[2]) end,
  LINSERT = function(words) return size(words[2]) end,
  LPOS = function(words) return size(words[2]) end,
  LREM = function(words) return size(words[2]) end,
  PFCOUNT = function(words) return 32 * (#words - 1) end,
  PFMERGE = function(words) return 32 * (#words - 1) end,
  SORT = function(words) return size(words[2]) end,
  XPENDING = function(words)
    return words[4] == 'IDLE' and server.call('XPENDING', words[2], words[3])[1] or 0
  end,
}

-- Commands that reply with the number of elements that they removed or stored.
local counts = {
  SORT = true, XTRIM = true, ZINTERSTORE = true, ZRANGESTORE = true, ZREMRANGEBYLEX = true, ZREMRANGEBYRANK = true,
  ZREMRANGEBYSCORE = true, ZUNIONSTORE = true,
}

local function offset(words)
  for i = 3, #words do
    if words[i] == 'LIMIT' and string.sub(words[1], 1, 1) == 'Z' then
      return tonumber(words[i + 1])
    end
  end
  return 0
end

local function counted(run)
  return function(...)
    local words = { ... }
    work = work + 1 + math.max(0, #words - 2) + offset(words)
    if unseen[words[1]] then
      work = work + unseen[words[1]](words)
    end
    local before = words[1] == 'LTRIM' and size(words[2])
    local reply = run(...)
    work = work + weigh(reply)
    if counts[words[1]] and type(reply) == 'number' then
      -- Whole nodes of a stream, of 100 entries each.
      work = work + (words[4] == '~' and math.ceil(reply / 100) or reply)
    end
    if before then
      work = work + before - size(words[2])
    end
    return reply
  end
end

local redis = {
  call = counted(server.call), pcall = counted(server.pcall), sha1hex = server.sha1hex, log = server.log,
  status_reply = server.status_reply, error_reply = server.error_reply,
}
