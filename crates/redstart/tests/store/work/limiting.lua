-- [limiter.check_all] Three limits of one subject.
zfill('log', PAST)
return { 'bucket', 'log', 'counter' },
  { 'take', 'exact', 1000, 9000, 1, '', 'log', 1, 100, 1000000, 'id', 'counter', 1, 100, 60000, '' }

-- [fixed_window.check]
return { 'counter' }, { 1, 100, 60000 }

-- [fixed_window.refund]
call('SET', 'counter', '5 ' .. text(FUTURE / 1000))
return { 'counter' }, { 1, 60000, text(FUTURE / 1000) }

-- [sliding_counter.check]
return { 'counters' }, { 1, 100, 60000 }

-- [sliding_counter.refund]
call('SET', 'counters', text(math.floor(at / 1000 / 60000)) .. ' 5 5')
return { 'counters' }, { 1, 60000, text(math.floor(at / 1000 / 60000)) }

-- [sliding_window.check] Old members are removed a few at a time.
zfill('log', PAST)
return { 'log' }, { 1, 10000, 1000000, 'id' }

-- [sliding_window.check] Refused at the limit: the one that frees the place is found by its rank.
zfill('log', at)
return { 'log' }, { N - 1, N, 60000000, 'id' }

-- [sliding_window.refund] A grant of 100.
zfill('log', at, function(i) return 'id:' .. i end)
return { 'log' }, { 100, 60000000, 'id' }

-- [token_bucket.check_exact]
return { 'bucket' }, { 1000, 9000, 1 }

-- [token_bucket.check_ledger]
return { 'bucket' }, { 1000, 9000, 1, 'period' }

-- [token_bucket.refund]
call('SET', 'bucket', time[1] .. '90000000 period 90000000 ' .. string.rep('1000:10;', 256))
return { 'bucket' }, { 1000, 1, 'period', 80000000 }

-- [token_bucket.check_whole]
return { 'bucket' }, { 1000, 9000 }
