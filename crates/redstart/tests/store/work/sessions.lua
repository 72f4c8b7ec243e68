-- [session.account]
return { 'account' }, { 'random', 60000 }

-- [session.create] The user has sessions that ended.
zfill('index', PAST)
return { 'session', 'index' }, { 3600000000, 7200000000, 'id', 'user', 'digest', '', '', '1 10', 'd:a', '1' }

-- [session.list] at most 1600: a page of 500, each with its end, found by halves among all with one end.
zfill('index', function(i) return i % 2 == 0 and PAST + i or FUTURE end)
return { 'index' }, { 500, text(FUTURE), '' }

-- [session.load]
zfill('index', PAST)
hfill('session', '1', function(i) return 'd:' .. i % 1000 end)
call('HSET', 'session', 'token', 'digest', 'ends', text(FUTURE), 'until', text(FUTURE), 'seen', 1, 'user', 'ann', 'size', '1000 5000')
return { 'session', 'index' }, { 3600000000, 7200000000, 1000000, 'id', 'digest' }

-- [session.login] at most 2600: the session has as many fields as it may.
zfill('index', PAST)
hfill('session', '1', function(i) return 'd:' .. i % 1000 end)
call('HSET', 'session', 'token', 'digest', 'ends', text(FUTURE), 'until', text(FUTURE), 'seen', 1, 'user', 'ann', 'size', '1000 5000')
return { 'session', 'index' }, { 'id', 'digest' }

-- [session.patch]
zfill('index', PAST)
hfill('session', '1', function(i) return 'd:' .. i % 1000 end)
call('HSET', 'session', 'token', 'digest', 'ends', text(FUTURE), 'until', text(FUTURE), 'seen', 1, 'user', 'ann', 'size', '1000 5000')
return { 'session', 'index' }, { 3600000000, 7200000000, 1000000, 'id', 'digest', 1000, 1000000, 1, 'd:1', '2' }

-- [session.revoke] The call ends 100 sessions.
zfill('index', FUTURE)
local keys, args = { 'index' }, { '' }
for i = 1, 100 do
  call('HSET', 'session-' .. i, 'token', 'digest')
  keys[#keys + 1], args[#args + 1] = 'session-' .. i, name(i)
end
return keys, args

-- [session.rotate]
zfill('index', PAST)
call('HSET', 'session', 'token', 'digest', 'ends', text(FUTURE), 'until', text(FUTURE), 'seen', 1, 'user', 'ann', 'size', '0 0')
return { 'session', 'index' }, { 'id', 'digest', 'another', 10000000, '' }

-- [trail.visit] A trail that was longer once.
lfill('trail')
call('LTRIM', 'trail', 0, 99)
return { 'trail' }, { 100, 60000, 'page' }
