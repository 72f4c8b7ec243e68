-- Removes the children of a job that nobody has begun to run, with what is below them, as removeUnprocessedChildren of BullMQ.
-- KEYS: those of every script; the children's are derived from the keys that their parent notes
-- ARGV[3] id of the parent
-- Returns how many were removed.
local removed = 0
local places = {
  {'wait', 'LREM'}, {'paused', 'LREM'}, {'prioritized', 'ZREM'}, {'delayed', 'ZREM'}, {'waiting-children', 'ZREM'},
  {'completed', 'ZREM'}, {'active', 'LREM'},
}

local function leave(q, id)
  for _, place in ipairs(places) do
    local key = q.base .. place[1]
    local gone = place[2] == 'ZREM' and call('ZREM', key, id) or call('LREM', key, 0, id)
    if gone > 0 then return place[1] end
  end
  return 'unknown'
end

local function remove_below(parent_key)
  for _, key in ipairs(call('SMEMBERS', parent_key .. ':dependencies')) do
    local base, id = string.match(key, '^(.*:)([^:]*)$')
    if base and call('EXISTS', key .. ':lock') == 0 and not call('ZSCORE', base .. 'failed', id) then
      local q = queue(base)
      call('SREM', parent_key .. ':dependencies', key)
      remove_below(key)
      local state = leave(q, id)
      local guard = call('HGET', key, 'deid')
      if guard and call('GET', base .. 'de:' .. guard) == id then call('DEL', base .. 'de:' .. guard) end
      local gone = call('DEL', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':unsuccessful')
      if gone > 0 then
        event(q, 'removed', 'jobId', id, 'prev', state)
        removed = removed + 1
      end
    end
  end
end
remove_below(prefix .. ARGV[3])
return removed
