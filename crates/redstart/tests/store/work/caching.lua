-- [cache.lease]
return { 'entry', 'lease', 'fence', 'beside' }, { 'token', 1000, 'exclusive', '', '12345678' }

-- [cache.fill]
call('SET', 'lease', 'token')
return { 'entry', 'lease', 'beside' }, { 'token', 'RC\1 ' .. string.rep('x', 100), 60000, 'channel' }

-- [cache.release]
call('SET', 'lease', 'token')
return { 'lease' }, { 'token', 1000, 'channel' }

-- [cache.invalidate]
call('SET', 'entry', 'RC\1')
return { 'entry', 'lease', 'beside', 'fence' }, { 'channel', 'all', 'message' }

-- [cache.seed_tags]
zfill('shard', function(i) return i end)
return { 'shard' }, { 17, 60000 }

-- [cache.invalidate_tag] The shard remembers as many tags as it may.
zfill('shard', function(i) return i end)
call('ZADD', 'shard', -7, '#id', -N, '#n')
return { 'shard', 'bucket' }, { 'tag', 17, N, 60000, 'all', 'message' }

-- [cache.index_tag]
sfill('tagged')
return { 'tagged' }, { 'entry', 60000 }

-- [cache.clear]
return { 'sign' }, { 'all', 'message' }

-- [cache.fence]
zfill('fence', PAST, function(i) return 'w:' .. i end)
return { 'entry', 'lease', 'fence' }, { 'token', 30000, 'channel', 'all', 'message' }

-- [cache.settle] All writers of one key died within the time of a fence.
zfill('fence', PAST, function(i) return 'w:' .. i end)
call('ZADD', 'fence', 'inf', 'm:11111111')
return { 'entry', 'lease', 'fence', 'beside' }, { '1', 'set', 'RC\1', 60000, '12345678', 'channel', 'all', 'message' }

-- [write_behind.put]
xfill('log')
return { 'log', 'value' }, { 'key', '+bytes', 10000 }

-- [write_behind.lease]
return { 'value' }, { '?token', 1000 }

-- [write_behind.fill]
call('SET', 'value', '?token')
return { 'value' }, { '?token', '0-0\n+bytes', 60000 }

-- [write_behind.claim]
return { 'owner' }, { 'token', 1000 }

-- [write_behind.resign]
call('SET', 'owner', 'token')
return { 'owner' }, { 'token', 'channel' }

-- [write_behind.ack] at most 1600: a batch of 500 was applied.
xfill('log', function(i) return i .. '-1' end)
local keys, args = { 'log' }, { '501-0', 60000, 'channel' }
for i = 1, 100 do
  call('SET', name(i), i .. '-1\nbytes')
  keys[#keys + 1] = name(i)
  args[#args + 1] = i .. '-1'
end
return keys, args

-- [write_behind.bury] at most 2100: the call has 100 letters.
zfill('dead', 0)
hfill('letters', 'reason\nbytes')
hfill('blocked', '1')
local args = {}
for i = 1, 100 do
  for _, word in ipairs({ 'key-' .. i, digits(i), 'letter-' .. i, 'reason\nbytes' }) do
    args[#args + 1] = word
  end
end
return { 'dead', 'letters', 'blocked' }, args

-- [write_behind.unbury] The call removes 100 of the key's letters.
zfill('dead', 0, function(i) return '0001k' .. string.format('%020d-%020d', i, 1) end)
hfill('letters', 'reason\n+bytes', function(i) return '0001k' .. string.format('%020d-%020d', i, 1) end)
call('HSET', 'blocked', 'k', 1)
return { 'dead', 'letters', 'blocked', 'log', 'value' }, { 'k', '0001k', 'retry', 100, '' }

-- [write_behind.unbury] at most 1300: the cached value was evicted, so that the log has to be searched.
call('ZADD', 'dead', 0, '0001k' .. string.format('%020d-%020d', 1, 1))
call('HSET', 'letters', '0001k' .. string.format('%020d-%020d', 1, 1), 'reason\n+bytes')
call('HSET', 'blocked', 'k', 1)
xfill('log', function(i) return (i + 1) .. '-1' end)
return { 'dead', 'letters', 'blocked', 'log', 'value' }, { 'k', '0001k', 'retry', 100, '' }

-- [sorted_view.lease]
return { 'built', 'lease' }, { 'token', 1000 }

-- [sorted_view.sort] at most 8000: sorting is what it is for.
lfill('source', function(i) return i end)
call('SET', 'lease', 'token')
return { 'source', 'view', 'built', 'lease' }, { 'token', 60000, 'channel' }

-- [sorted_view.keep] at most 1300: the elements come with the call.
call('SET', 'lease', 'token')
local args = { 'token', 60000, 'channel' }
for i = 1, 1000 do
  args[#args + 1] = name(i)
end
return { 'view', 'built', 'lease' }, args

-- [sorted_view.drop]
lfill('view')
return { 'view', 'built', 'lease' }, { 'channel' }
