-- [stock.close]
call('HSET', 'sale', 'free', 1, 'held', 0, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
return { 'sale' }, { 1, '' }

-- [stock.extend]
call('HSET', 'sale', 'free', 1, 'held', 1, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('requests', 'h 1 ' .. text(FUTURE) .. ' ann')
zfill('holds', FUTURE)
return { 'sale', 'requests', 'holds', 'users', 'expired' }, { name(1), 1000000 }

-- [stock.lend] at most 2300: every hold is over.
call('HSET', 'sale', 'free', 0, 'held', N, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('requests', 'h 1 1 ann', request)
zfill('holds', PAST, request)
call('HSET', 'users', 'ann', N)
hfill('loans', '1 2 3 4 id')
hfill('ended', 1)
return { 'sale', 'requests', 'holds', 'users', 'expired', 'loans', 'ended' }, { 'token', 10, 1, '' }

-- [stock.offer]
call('HSET', 'sale', 'free', 0, 'held', N, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
zfill('holds', PAST)
return { 'sale', 'holds' }, {}

-- [stock.prewarm]
hfill('requests', 'h 1 1 ann')
zfill('holds', PAST)
hfill('users', 1)
hfill('loans', '1 2 3 4 id')
hfill('restocks', 1)
return { 'sale', 'requests', 'holds', 'users', 'loans', 'expired', 'restocks' }, { 'id', 100, 50, text(FUTURE / 1000), 0, 0 }

-- [stock.receive]
call('HSET', 'sale', 'free', 0, 'held', 0, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('decisions', 1)
return { 'sale', 'decisions' }, { 'token', 10, '', text(FUTURE / 1000) }

-- [stock.report] at most 2300: every hold is over; ending one takes a dozen commands and an entry, and 64 end at a time.
call('HSET', 'sale', 'free', 0, 'held', N, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('requests', 'h 1 1 ann', request)
zfill('holds', PAST, request)
call('HSET', 'users', 'ann', N)
return { 'sale', 'requests', 'holds', 'users', 'expired' }, {}

-- [stock.reserve] at most 2300: sold out, and every hold is over.
call('HSET', 'sale', 'free', 0, 'held', N, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('requests', 'h 1 1 ann', request)
zfill('holds', PAST, request)
call('HSET', 'users', 'ann', N)
return { 'sale', 'requests', 'holds', 'users', 'expired', 'orders' }, { 'request', 'bob', 100, 1000000, 0, 'sku', 'id', '' }

-- [stock.restock]
call('HSET', 'sale', 'free', 0, 'held', 0, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('restocks', 1)
return { 'sale', 'restocks' }, { 'id', 10 }

-- [stock.settle]
call('HSET', 'sale', 'free', 0, 'held', N, 'sold', 0, 'lent', 0, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('requests', 'h 1 ' .. text(FUTURE) .. ' ann')
zfill('holds', FUTURE)
call('HSET', 'users', 'ann', N)
return { 'sale', 'requests', 'holds', 'users', 'expired' }, { name(1), 'c' }

-- [stock.settle_loan]
call('HSET', 'sale', 'free', 0, 'held', 0, 'sold', 0, 'lent', N, 'moves', 0, 'ends', text(FUTURE / 1000))
hfill('loans', '1 2 3 4 id')
hfill('ended', 1)
return { 'sale', 'loans', 'ended' }, { name(1), 1 }

-- [stock.time]
return { 'sale' }, {}

-- [stock.warm]
return { 'sale' }, {}
