-- [notify.add] 100 members.
sfill('set')
local args = {}
for i = 1, 100 do args[i] = 'new-' .. i end
return { 'set', 'sign' }, args

-- [notify.take] 100 members.
sfill('set')
return { 'set', 'sign' }, { 100 }

-- [priority.pop] at most 1100: every reservation has ended; 200 of them are put back at a time.
zfill('reserved', PAST, function(i) return string.rep('0', 51) .. name(i) end)
return { 'queue', 'reserved' }, {}

-- [priority.push]
zfill('queue', 0)
return { 'queue' }, { 'channel', 0, string.rep('i', 16), 'item' }

-- [priority.reserve] at most 1100: every reservation has ended; 200 of them are put back at a time.
zfill('reserved', PAST, function(i) return string.rep('0', 51) .. name(i) end)
return { 'queue', 'reserved' }, { 1000000 }

-- [priority.settle]
zfill('queue', 0)
zfill('reserved', FUTURE, function(i) return string.rep('0', 51) .. name(i) end)
return { 'queue', 'reserved' }, { 'channel', string.rep('0', 51) .. name(1), 1 }

-- [reliable_list.give_back] The consumer holds 100 items, and does not know of one.
for i = 1, 100 do call('RPUSH', 'taken', name(i)) end
lfill('list')
zfill('consumers', PAST)
zfill('looks', 0)
local args = { name(1), 1000000 }
for i = 2, 100 do args[#args + 1] = name(i) end
return { 'list', 'taken', 'looks', 'consumers' }, args

-- [reliable_list.reap] at most 1900: a dead consumer has thousands of items; 500 of them are put back at a time.
lfill('taken')
zfill('consumers', PAST)
return { 'list', 'consumers', 'taken', 'silent', 'looks' }, { name(1), 0 }

-- [reliable_list.renew] 100 dead consumers are named.
zfill('consumers', PAST)
return { 'consumers', 'silent' }, { 'me', 1000000 }

-- [ring.add]
lfill('ring')
return { 'ring' }, { 'i:new' }

-- [ring.next]
lfill('ring')
return { 'ring', 'laps' }, {}

-- [ring.remove] at most 4000: the whole ring is searched.
lfill('ring')
return { 'ring', 'laps' }, { name(N) }

-- [stream.bury]
xfill('stream')
call('XGROUP', 'CREATE', 'stream', 'group', 0)
local first = call('XREADGROUP', 'GROUP', 'group', 'me', 'COUNT', 1, 'STREAMS', 'stream', '>')[1][2][1][1]
return { 'stream', 'dead' }, { 'group', first, 'reason' }

-- [stream.claim] at most 4500: 100 of the entries that a dead consumer has; the look goes over what is pending.
xfill('stream')
call('XGROUP', 'CREATE', 'stream', 'group', 0)
call('XREADGROUP', 'GROUP', 'group', 'dead', 'COUNT', 1000, 'STREAMS', 'stream', '>')
return { 'stream', 'dead' }, { 'group', 'me', 0, 100, 5 }

-- [stream.trim] All of it was acknowledged.
xfill('stream')
call('XGROUP', 'CREATE', 'stream', 'group', '$')
return { 'stream' }, { 0 }

-- [stream.trim] All but a few of the entries are young.
xfill('stream', function(i) return i < 90 and i .. '-1' or (text(FUTURE / 1000) .. '-' .. i) end)
call('XGROUP', 'CREATE', 'stream', 'group', '$')
return { 'stream' }, { 0 }
