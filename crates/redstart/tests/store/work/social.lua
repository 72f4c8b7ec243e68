-- [graph.apply]
for _, key in ipairs({ 'following', 'followers', 'blocked' }) do zfill(key, PAST) end
zfill('seen', 1)
hfill('intents', 'follow 1')
zfill('by_time', 1)
return { 'following', 'followers', 'blocked', 'seen', 'intents', 'by_time', 'last' }, { 'follow', 'a', 'b', text(at) }

-- [graph.change]
for _, key in ipairs({ 'a1', 'a2', 'a3', 'b1', 'b2', 'b3' }) do zfill(key, PAST) end
return { 'a1', 'a2', 'a3', 'b1', 'b2', 'b3' }, { 'block', 'a', 'b' }

-- [graph.complete]
zfill('following', PAST)
hfill('intents', 'follow 1')
zfill('by_time', 1)
-- No more are kept.
for i = 1, 1000 do call('ZADD', 'refused', i, 'x' .. i) end
local number = text(7200 * 1000000)
call('HSET', 'intents', 'a\0b', 'follow ' .. number)
return { 'following', 'intents', 'by_time', 'seen', 'refused' }, { 'follow', 'a', 'b', number, 0, 1 }

-- [graph.intend]
for _, key in ipairs({ 'following', 'followers', 'blocked' }) do zfill(key, PAST) end
hfill('intents', 'follow 1')
zfill('by_time', 1)
return { 'following', 'followers', 'blocked', 'intents', 'by_time', 'last' }, { 'block', 'a', 'b' }

-- [graph.page] at most 800: a page of 100 behind a cursor among members with the same time.
zfill('followers', PAST)
zfill('following', PAST)
return { 'followers', 'following' }, { text(PAST), 'member-002500x', 100 }

-- [graph.repair] 100 of them.
zfill('by_time', 1, function(i) return 'a' .. i .. '\0b' end)
hfill('intents', 'follow 1', function(i) return 'a' .. i .. '\0b' end)
return { 'intents', 'by_time' }, { 1000, 100 }

-- [graph.postpone]
zfill('by_time', 1, function(i) return 'a' .. i .. '\0b' end)
return { 'by_time' }, { 'a1', 'b' }

-- [graph.unblock]
zfill('blocked', PAST)
hfill('intents', 'follow 1')
return { 'blocked', 'intents' }, { 'a', name(1) }
