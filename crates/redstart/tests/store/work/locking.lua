-- [fair.acquire]
-- A line of the dead, behind which the caller waits.
zfill('queue', 1)
zfill('places', PAST)
call('SET', 'lock', 'rs-other', 'PX', 60000)
return { 'lock', 'queue', 'places', 'fence' }, { 'rs-me', 30000, 1, 5000, 'channel' }

-- [fair.extend]
call('SET', 'lock', 'rs-me', 'PX', 10)
return { 'lock' }, { 'rs-me', 30000 }

-- [fair.force_release]
zfill('queue', 1)
zfill('places', PAST)
call('SET', 'lock', 'rs-other', 'PX', 60000)
return { 'lock', 'queue', 'places', 'fence' }, { 'rs-other', 'channel' }

-- [fair.holder]
zfill('places', FUTURE)
call('SET', 'lock', 'rs-other', 'PX', 60000)
return { 'lock', 'queue', 'places', 'fence' }, {}

-- [fair.redeem]
zfill('queue', 1)
zfill('places', FUTURE)
call('SET', 'lock', 'rs-old', 'PX', 60000)
return { 'lock', 'queue', 'places', 'fence' }, { 'rs-old', 'rs-new', 30000, 'channel' }

-- [fair.release]
zfill('queue', 1)
zfill('places', PAST)
call('SET', 'lock', 'rs-me', 'PX', 60000)
return { 'lock', 'queue', 'places', 'fence' }, { 'rs-me', 'channel' }

-- [fenced.write]
call('HSET', 'value', 'fence', 1, 'value', 'v')
return { 'value' }, { 2, 'set', 'w' }

-- [leader.campaign]
return { 'office', 'fence' }, { 'rs-me', 30000, 1, 5000, 'channel', 'node-1' }

-- [leader.extend]
call('HSET', 'office', 'token', 'rs-me', 'id', 'node-1', 'term', 1)
return { 'office', 'fence' }, { 'rs-me', 30000, 'node-1' }

-- [leader.force_release]
call('HSET', 'office', 'token', 'rs-me', 'id', 'node-1', 'term', 1)
return { 'office', 'fence' }, { 1, 'channel' }

-- [leader.redeem]
call('HSET', 'office', 'token', 'rs-old', 'id', 'node-1', 'term', 1)
return { 'office', 'fence' }, { 'rs-old', 'rs-new', 30000, 'channel', 'node-2' }

-- [leader.resign]
call('HSET', 'office', 'token', 'rs-me', 'id', 'node-1', 'term', 1)
return { 'office', 'fence' }, { 'rs-me', 'channel', 'node-1' }

-- [legacy.acquire]
call('SET', 'lock', text(PAST / 1000000))
return { 'lock', 'owner', 'fence' }, { 'rs-me', 30000, 1, 5000, 'channel', 1000000, 1000000 }

-- [legacy.extend]
call('SET', 'lock', 1)
call('HSET', 'owner', 'token', 'rs-me', 'stamp', 1)
return { 'lock', 'owner', 'fence' }, { 'rs-me', 30000, 1000000, 1000000 }

-- [legacy.force_release]
call('SET', 'lock', 1)
call('HSET', 'owner', 'token', 'rs-me', 'stamp', 1)
return { 'lock', 'owner', 'fence' }, { 'rs-me', 'channel' }

-- [legacy.holder]
call('SET', 'lock', text(FUTURE / 1000000))
return { 'lock', 'owner', 'fence' }, { 'channel', 1000000, 1000000 }

-- [legacy.migrate]
call('SET', 'lock', text(FUTURE / 1000000))
return { 'lock' }, { 1000000, 1000000 }

-- [legacy.redeem]
call('SET', 'lock', 1)
call('HSET', 'owner', 'token', 'rs-old', 'stamp', 1)
return { 'lock', 'owner', 'fence' }, { 'rs-old', 'rs-new', 30000, 'channel', 1000000, 1000000 }

-- [legacy.release]
call('SET', 'lock', 1)
call('HSET', 'owner', 'token', 'rs-me', 'stamp', 1)
return { 'lock', 'owner', 'fence' }, { 'rs-me', 'channel', 1000000, 1000000 }

-- [legacy.state]
call('SET', 'lock', text(FUTURE / 1000000))
return { 'lock' }, { 1000000, 1000000 }

-- [mutex.acquire]
call('SET', 'lock', 'rs-other', 'PX', 60000)
return { 'lock', 'fence' }, { 'rs-me', 30000, 1 }

-- [mutex.extend]
call('SET', 'lock', 'rs-me+', 'PX', 10)
return { 'lock' }, { 'rs-me', 30000 }

-- [mutex.force_release]
call('SET', 'lock', 'rs-other+', 'PX', 60000)
return { 'lock' }, { 'rs-other', 'channel' }

-- [mutex.holder]
call('SET', 'lock', 'rs-other', 'PX', 60000)
return { 'lock' }, { 'channel' }

-- [mutex.redeem]
call('SET', 'lock', 'rs-old+', 'PX', 60000)
return { 'lock', 'fence' }, { 'rs-old', 'rs-new', 30000, 'channel' }

-- [mutex.release]
call('SET', 'lock', 'rs-me+', 'PX', 60000)
return { 'lock' }, { 'rs-me', 'channel' }

-- [redlock.acquire]
return { 'lock', 'fence' }, { 'rs-me', 30000, 0, 5000, 'channel', 0 }

-- [redlock.extend]
call('SET', 'lock', 'rs-me', 'PX', 10)
return { 'lock', 'fence' }, { 'rs-me', 30000 }

-- [redlock.force_release]
call('SET', 'lock', 'rs-other', 'PX', 60000)
return { 'lock', 'fence' }, { 'rs-other', 'channel' }

-- [redlock.holder]
call('SET', 'lock', 'rs-other', 'PX', 60000)
return { 'lock' }, { 'channel' }

-- [redlock.raise_fence]
call('SET', 'lock', 'rs-me', 'PX', 60000)
return { 'lock', 'fence' }, { 'rs-me', 17 }

-- [redlock.redeem]
call('SET', 'lock', 'rs-old', 'PX', 60000)
return { 'lock', 'fence' }, { 'rs-old', 'rs-new', 30000, 'channel', 0 }

-- [redlock.release]
call('SET', 'lock', 'rs-me', 'PX', 60000)
return { 'lock', 'fence' }, { 'rs-me', 'channel' }

-- [rw.extend_read]
zfill('readers', FUTURE)
return { 'writer', 'readers', 'waiting', 'fence' }, { name(1), 7200000 }

-- [rw.extend_write]
call('SET', 'writer', 'rs-me', 'PX', 10)
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-me', 30000 }

-- [rw.force_release_read]
zfill('readers', PAST)
call('ZADD', 'readers', text(FUTURE), 'rs-me')
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-me', 'channel' }

-- [rw.force_release_write]
zfill('waiting', FUTURE)
call('SET', 'writer', 'rs-me')
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-me', 'channel' }

-- [rw.holders] 100 readers are listed, each with its end
zfill('readers', FUTURE)
zfill('waiting', FUTURE)
return { 'writer', 'readers', 'waiting', 'fence' }, {}

-- [rw.read]
zfill('readers', PAST)
zfill('waiting', PAST)
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-me', 30000, 1, 5000, 'channel' }

-- [rw.redeem_read]
zfill('readers', FUTURE)
return { 'writer', 'readers', 'waiting', 'fence' }, { name(1), 'rs-new', 30000, 'channel' }

-- [rw.redeem_write]
zfill('waiting', FUTURE)
call('SET', 'writer', 'rs-old', 'PX', 60000)
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-old', 'rs-new', 30000, 'channel' }

-- [rw.release_read]
zfill('readers', PAST)
call('ZADD', 'readers', text(FUTURE), 'rs-me')
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-me', 'channel' }

-- [rw.release_write]
zfill('waiting', PAST)
call('SET', 'writer', 'rs-me')
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-me', 'channel' }

-- [rw.write]
zfill('readers', FUTURE)
zfill('waiting', PAST)
return { 'writer', 'readers', 'waiting', 'fence' }, { 'rs-me', 30000, 1, 5000, 'channel' }

-- [semaphore.acquire]
zfill('permits', PAST)
return { 'permits' }, { 'rs-me', 30000, 1, 5000, 'channel', 2 }

-- [semaphore.extend]
zfill('permits', FUTURE)
return { 'permits' }, { name(1), 7200000, N }

-- [semaphore.force_release]
zfill('permits', FUTURE)
return { 'permits' }, { name(1), 'channel', N }

-- [semaphore.holders] 100 holders are listed, each with its end
zfill('permits', FUTURE)
return { 'permits' }, { 'channel' }

-- [semaphore.redeem]
zfill('permits', FUTURE)
return { 'permits' }, { name(1), 'rs-new', 30000, 'channel', N }

-- [semaphore.release]
zfill('permits', FUTURE)
return { 'permits' }, { name(1), 'channel', N }
