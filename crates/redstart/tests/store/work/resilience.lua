-- [breaker.admit] Half-open, and all probes died.
call('HSET', 'circuit', 'state', 'h', 'gen', 1, 'until', 0, 'ok', 0)
zfill('probes', PAST)
return { 'circuit', 'window', 'probes', 'trouble' }, { 'channel', 60000, 1000000, 3, 'token', 1000000 }

-- [breaker.force]
lfill('window')
zfill('probes', PAST)
hfill('trouble', 1)
return { 'circuit', 'window', 'probes', 'trouble' }, { 'channel', 60000, 1000000, 3, 'o' }

-- [breaker.look]
return { 'circuit', 'window', 'probes', 'trouble' }, { 'channel', 60000, 1000000, 3 }

-- [breaker.probed]
call('HSET', 'circuit', 'state', 'h', 'gen', 1, 'until', 0, 'ok', 2)
zfill('probes', FUTURE)
return { 'circuit', 'window', 'probes', 'trouble' }, { 'channel', 60000, 1000000, 3, name(1), 1, 'o' }

-- [breaker.report_count] at most 4000: 250 outcomes, the most of a report, push out as many single ones of a full window.
call('HSET', 'circuit', 'state', 'c', 'gen', 1, 'until', 0, 'ok', 0)
for i = 1, 1000 do call('RPUSH', 'window', 'f ' .. name(i)) end
hfill('trouble', 1, function(i) return 'i' .. name(i % 1000 + 1) end)
call('HSET', 'trouble', 'gen', 1, 'calls', 1000, 'failed', 1000, 'slow', 0)
return { 'circuit', 'window', 'probes', 'trouble' },
  { 'channel', 60000, 1000000, 3, 1, 'me', string.rep('o', 250), 100, 2000000, 0, 1, 1000 }

-- [breaker.report_time] Instances that had trouble long ago.
call('HSET', 'circuit', 'state', 'c', 'gen', 1, 'until', 0, 'ok', 0)
call('HSET', 'window', 'gen', 1)
for i = 1, 19 do call('HSET', 'window', i, '1 1 1') end
zfill('trouble', PAST)
return { 'circuit', 'window', 'probes', 'trouble' },
  { 'channel', 60000, 1000000, 3, 1, 'me', '1 1 0', 100, 500000, 0, 1, 1000000 }

-- [idempotency.begin]
return { 'request' }, { 'print', 'token', 1000000, 60000, '' }

-- [idempotency.doubt]
call('HSET', 'request', 'f', 'print', 't', 'token', 'e', 1)
return { 'request' }, { 'token', 60000 }

-- [idempotency.finish]
call('HSET', 'request', 'f', 'print', 't', 'token', 'e', 1)
return { 'request' }, { 'token', 'print', 'result', 60000 }

-- [idempotency.forget]
call('HSET', 'request', 'f', 'print', 't', 'token', 'e', 1)
return { 'request' }, { 60000 }

-- [idempotency.release]
call('HSET', 'request', 'f', 'print', 't', 'token', 'e', 1)
return { 'request' }, { 'token', 60000 }

-- [idempotency.renew]
call('HSET', 'request', 'f', 'print', 't', 'token', 'e', 1)
return { 'request' }, { 'token', 1000000, 60000 }

-- [breaker.return]
return { 'circuit', 'window', 'probes', 'trouble' }, { 'channel', 60000, 1000000, 3 }
