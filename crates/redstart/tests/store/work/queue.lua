-- [queue.cancel] at most 800: a job that waits in the list, among thousands, with all details that a job can have.
lfill('ready', job_id)
hfill('jobs', function(i) return job(job_id(i), 'r', PAST, 8) end, job_id)
call('HSET', 'details', job_id(1) .. 'n', 100)
for i = 0, 99 do call('HSET', 'details', job_id(1) .. 'l' .. i, 'line') end
return queue('parked'), setting(job_id(1), 'text', 'cancel')

-- [queue.cron_fire] at most 1000: 100 runs that were missed, each of which is looked for first.
call('ZADD', 'cron', 17, 'entry')
local args = setting('entry', 17, 18)
for i = 1, 100 do args[#args + 1] = job_body(job_id(i)) end
return queue('cron'), args

-- [queue.pause_cron]
hfill('crontab', '{}')
zfill('cron', FUTURE)
return { 'cron', 'crontab', 'paused' }, { 'channel', name(1), '' }

-- [queue.cron]
hfill('crontab', '{}')
zfill('cron', FUTURE)
return { 'cron', 'crontab', 'paused' }, { 'channel', 'new', '{}', text(FUTURE), '* * * * *', 'UTC' }

-- [queue.remove_cron]
hfill('crontab', '{}')
zfill('cron', FUTURE)
return { 'cron', 'crontab', 'paused' }, { name(1) }

-- [queue.enqueue] at most 1000: 100 jobs into a full queue with dead workers that are taken for idle, and keys whose time is over.
hfill('jobs', function(i) return job(job_id(i), 'r') end, job_id)
lfill('ready', job_id)
zfill('timed', PAST)
hfill('unique', string.rep('0', 32))
for i = 1, 50 do call('ZADD', 'idle', i, string.rep('d', 32) .. i) end
local args = setting(1000000, 0, 0, '', 'key', 1, 0, 'keep', 60000)
for i = 1, 100 do args[#args + 1] = job_body('new-' .. string.format('%012d', i), 1, extra('u', 'key')) end
return queue('mark', 'timed'), args

-- [queue.enqueue_plain] 100 jobs.
hfill('jobs', function(i) return job(job_id(i), 'r') end, job_id)
lfill('ready', job_id)
local args = { 'channel', 1000 }
for i = 1, 100 do args[#args + 1] = job_body('new-' .. string.format('%012d', i)) end
return { 'jobs', 'ready', 'idle', 'events' }, args

-- [queue.expire_parked] at most 1000: 20 jobs.
hfill('jobs', function(i) return job(job_id(i), 'p', PAST, 12) end, job_id)
zfill('parked', PAST, job_id)
return queue('parked', 'kinds'), setting('mail', 20)

-- [queue.finish] at most 600: 256 jobs that are done and leave nothing, the most of a batch.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return held(job_id(i)) end, job_id)
hfill('running', 3, delivery)
call('HSET', 'meta', 'running', N)
local args = setting(60000000, WORKER, 0, 60, 256)
for i = 1, 256 do args[#args + 1] = delivery(i) end
args[#args + 1], args[#args + 2] = 0, 0
return queue('running', 'parked', 'history', 'tallies'), args

-- [queue.finish] at most 3500: 20 jobs that are kept, among many more done ones than are to be kept: 60 of these are removed.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return held(job_id(i)) end, job_id)
hfill('running', 3, delivery)
call('HSET', 'meta', 'running', N)
zfill('done', FUTURE, function(i) return 'old-' .. string.format('%012d', i) end)
hfill('ended', function(i) return job('old-' .. string.format('%012d', i), 'd') end, function(i) return 'old-' .. string.format('%012d', i) end)
local args = setting(60000000, WORKER, 0, 60, 0, 20)
for i = 1, 20 do
  for _, word in ipairs({ delivery(i), 'done', 0, '{}' }) do args[#args + 1] = word end
end
args[#args + 1] = 0
return queue('running', 'parked', 'history', 'tallies'), args

-- [queue.finish] at most 2500: 256 jobs of groups and a kind with a limit that are done and leave nothing, of which it writes some.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return held(job_id(i), 64, extra('g', name(i)) .. extra('l', '')) end, job_id)
hfill('running', 3, delivery)
call('HSET', 'meta', 'running', N)
hfill('meta', 1, function(i) return 'n:' .. name(i) end)
call('HSET', 'meta', 'n:\1mail', N)
zfill('grouped', 0, function(i) return name(i) .. '\0' .. digits(PAST) .. job_id(i) end)
for i = 1, 50 do call('ZADD', 'idle', i, string.rep('d', 32) .. i) end
local args = setting(60000000, WORKER, 0, 60, 0, 256)
args[4] = '-1'
for i = 1, 256 do
  for _, word in ipairs({ delivery(i), 'done', 0, '' }) do args[#args + 1] = word end
end
args[#args + 1] = 0
return queue('running', 'parked', 'history', 'tallies'), args

-- [queue.flow] A parent with 100 children.
local args = setting(0, 0, 60000, 100, job_body(job_id(1), 64, extra('n', '100')))
for i = 2, 101 do
  args[#args + 1] = 0
  args[#args + 1] = job_body(job_id(i), 64, extra('p', job_id(1) .. 'f' .. i))
end
return queue('mark'), args

-- [queue.flow_close] at most 1100: 100 parents.
zfill('parents', FUTURE, job_id)
local args = setting(0)
for i = 1, 100 do args[#args + 1] = job_id(i) end
return queue(), args

-- [queue.flow_complete] A flow of thousands.
hfill('staged', function(i) return '0:' .. job_body(job_id(i)) end, function(i) return text(i - 1) end)
zfill('flows', FUTURE, job_id)
return queue('staged', 'flows', 'mark'), setting(job_id(1), N, 60000, 5000000)

-- [queue.flow_publish] at most 2500: leaves of a flow of thousands that have a group each, of which it hands out some.
hfill('staged', function(i) return '0:' .. job_body(job_id(i), 64, extra('p', job_id(1) .. 'f' .. i) .. extra('g', name(i))) end, function(i) return text(i - 1) end)
call('HSET', 'staged', '', 0)
zfill('flows', FUTURE, job_id)
return queue('staged', 'flows'), setting(job_id(1), 5000000)

-- [queue.flow_stage] at most 1000: 300 jobs of a flow of thousands.
hfill('staged', '0:')
zfill('flows', FUTURE, job_id)
local args = { 60000000, N, 600000, job_id(1) }
for i = 1, 300 do args[#args + 1] = '0:' .. job_body(job_id(i)) end
return { 'staged', 'flows' }, args

-- [queue.flow_hear] A parent hears of the last of its children in other queues, which fails it.
call('HSET', 'jobs', job_id(1), job(job_id(1), 'w', PAST, 64, extra('n', '100')))
call('HSET', 'details', job_id(1) .. 'w', 1)
zfill('parents', FUTURE, job_id)
hfill('details', 'counted', function(i) return job_id(1) .. 'm' .. i end)
return queue(), setting(job_id(1), 'f', 0, digits(PAST), 'c', 'cancelled')

-- [queue.flow_told]
zfill('parents', AWAY + PAST, function(i) return '>' .. job_id(i) end)
hfill('details', digits(PAST), function(i) return job_id(i) .. 'q' end)
return queue(), setting(job_id(1), digits(PAST))

-- [queue.leave] at most 1100: a worker with 100 jobs.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return held(job_id(i)) end, job_id)
for i = 1, 100 do call('HSET', 'running', delivery(i), 3) end
call('HSET', 'meta', 'running', 100)
lfill('ready', job_id)
return queue('running', 'workers', 'lines'), setting('me', 'me')

-- [queue.job] A job with all details that it can have.
call('HSET', 'jobs', job_id(1), job(job_id(1), 'r', PAST, 8))
call('HSET', 'details', job_id(1) .. 'n', 1000)
for i = 0, 99 do call('HSET', 'details', job_id(1) .. 'l' .. i, 'line') end
return queue(), setting(job_id(1))

-- [queue.pause]
return { 'meta' }, { 'channel', 0 }

-- [queue.progress]
call('HSET', 'running', '', 1, delivery(1), 3)
call('HSET', 'jobs', job_id(1), held(job_id(1)))
return queue('running'), setting(delivery(1), 'progress', 0.5)

-- [queue.purge] at most 1500: 100 letters, of which it deletes some.
hfill('jobs', function(i) return job(job_id(i), 'z', PAST, 8) end, job_id)
zfill('dead', PAST, job_id)
local args = setting()
for i = 1, 100 do args[#args + 1] = job_id(i) end
return queue(), args

-- [queue.reclaim] at most 2100: a dead worker with 100 jobs.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return held(job_id(i)) end, job_id)
for i = 1, 100 do call('HSET', 'running', delivery(i), 3) end
call('HSET', 'meta', 'running', 100)
call('ZADD', 'workers', 1, 'dead')
return queue('running', 'workers', 'lines'), setting('dead', WORKER, 3)

-- [queue.reconcile] at most 1100: a worker with 100 jobs, none of which it knows.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return held(job_id(i)) end, job_id)
for i = 1, 100 do call('HSET', 'running', delivery(i), 3) end
call('HSET', 'meta', 'running', 100)
return queue('running'), setting(2)

-- [queue.time]
return { 'jobs' }, {}

-- [queue.register]
zfill('workers', PAST)
return { 'running', 'workers', 'meta' }, { 'me', 1, 1000000, '' }

-- [queue.renew] A worker with 100 jobs, one of which is to be cancelled.
call('HSET', 'running', '', 1)
for i = 1, 100 do call('HSET', 'running', delivery(i), 3) end
call('HSET', 'meta', 'cancels', 1, 'c:' .. job_id(1), 1)
return { 'running', 'workers', 'meta' }, { 'me', 1000000 }

-- [queue.replay] at most 1000: 100 letters, of which it replays some.
hfill('jobs', function(i) return job(job_id(i), 'z', PAST, 8) end, job_id)
zfill('dead', PAST, job_id)
local args = setting()
for i = 1, 100 do args[#args + 1] = job_id(i) end
return queue(), args

-- [queue.reserve] at most 1000: a place for one job; 100 delayed jobs that are due are promoted.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return job(job_id(i), 'l') end, job_id)
zfill('delayed', PAST, job_id)
return queue('running', 'workers', 'rates', 'lines'),
  setting('me', 1, 1, 1000000, 100, 1048576, WORKER, 0, 0, 1, 0, 0, 1, 3, '', 0)

-- [queue.reserve] at most 3000: a place for one job; thousands of groups whose limits are free again, and deleted jobs in the list.
call('HSET', 'running', '', 1)
lfill('ready', job_id)
zfill('rates', PAST)
zfill('resting', PAST)
return queue('running', 'workers', 'rates', 'lines'),
  setting('me', 1, 1, 1000000, 100, 1048576, WORKER, 0, 1000, 1, 1, 1000, 1, 3, '', 0)

-- [queue.reserve] at most 1100: 100 jobs of thousands, without any limit.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return job(job_id(i), 'r') end, job_id)
lfill('ready', job_id)
return queue('running', 'workers', 'rates', 'lines'),
  setting('me', 1, 100, 1000000, 100, 1048576, WORKER, 0, 0, 0, 0, 0, 0, 3, '', 0)

-- [queue.run_now]
call('HSET', 'jobs', job_id(1), job(job_id(1), 'l'))
zfill('delayed', FUTURE, job_id)
return queue(), setting(job_id(1))

-- [queue.schedule] What parents in other queues are to be told.
call('HSET', 'running', '', 1)
zfill('parents', AWAY + PAST, function(i) return '>' .. job_id(i) end)
hfill('details', digits(PAST) .. 'd', function(i) return job_id(i) .. 'q' end)
return queue('running', 'workers', 'cron', 'crontab', 'kinds', 'timed', 'history', 'tallies', 'flows'),
  setting('me', 1000000, 0, 0, 60)

-- [queue.schedule] at most 3000: everything that can be due is: jobs that were kept long enough, unique keys, open flows, dead letters, minutes.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return job(job_id(i), 'z', PAST, 8) end, job_id)
zfill('done', PAST, function(i) return 'old-' .. string.format('%012d', i) end)
hfill('ended', function(i) return job('old-' .. string.format('%012d', i), 'd') end, function(i) return 'old-' .. string.format('%012d', i) end)
zfill('dead', PAST, job_id)
zfill('timed', PAST)
hfill('unique', string.rep('0', 32))
zfill('parents', PAST, job_id)
zfill('history', 1)
hfill('tallies', 1)
zfill('workers', PAST)
zfill('cron', PAST)
hfill('crontab', '{}')
zfill('kinds', PAST)
zfill('flows', PAST, job_id)
return queue('running', 'workers', 'cron', 'crontab', 'kinds', 'timed', 'history', 'tallies', 'flows'),
  setting('me', 1000000, 1000, 100, 60)

-- [queue.reserve] at most 2400: thousands of groups whose first jobs need a place of a kind that has none, and as many kinds as
-- some programs have.
call('HSET', 'running', '', 1)
call('HSET', 'meta', 'n:' .. char(1) .. 'mail', 2)
hfill('jobs', function(i) return job(job_id(i), 'r', PAST, 64, extra('g', name(i)) .. extra('l', '')) end, job_id)
zfill('grouped', 0, function(i) return name(i) .. '\0' .. digits(PAST) .. job_id(i) end)
zfill('groups', function(i) return i end)
local kinds = {}
for i = 1, 20 do
  for _, word in ipairs({ 'kind' .. i, 2, 0, 0 }) do kinds[#kinds + 1] = word end
  call('HSET', 'meta', 'n:' .. char(1) .. 'kind' .. i, 2, 'w:' .. char(1) .. 'kind' .. i, 1)
  call('ZADD', 'lines', 0, char(1) .. 'kind' .. i .. '\0' .. digits(i) .. 'other' .. i, 0, '\0other' .. i)
end
return queue('running', 'workers', 'rates', 'lines'),
  setting('me', 1, 16, 1000000, 100, 1048576, WORKER, 0, 0, 0, 0, 0, 0, 3, '', 0, 'mail', 2, 0, 0, unpack(kinds))

-- [queue.reserve] at most 1200: 16 jobs of groups that stand in the line of a kind which has places again.
call('HSET', 'running', '', 1)
hfill('jobs', function(i) return job(job_id(i), 'r', PAST, 64, extra('g', name(i)) .. extra('l', '')) end, job_id)
zfill('grouped', 0, function(i) return name(i) .. '\0' .. digits(PAST) .. job_id(i) end)
zfill('lines', 0, function(i) return char(1) .. 'mail' .. '\0' .. digits(i) .. name(i) end)
zfill('lines', 0, function(i) return '\0' .. name(i) end)
call('HSET', 'meta', 'w:' .. char(1) .. 'mail', N)
return queue('running', 'workers', 'rates', 'lines'),
  setting('me', 1, 16, 1000000, 100, 1048576, WORKER, 0, 0, 0, 0, 0, 0, 3, '', 0, 'mail', 100, 0, 0)

-- [queue.finish] at most 1100: jobs with ten thousand children each.
call('HSET', 'running', '', 1)
for i = 1, 20 do
  call('HSET', 'jobs', job_id(i), held(job_id(i), 64, extra('n', '10000')))
  call('HSET', 'running', delivery(i), 3)
end
call('HSET', 'meta', 'running', 20)
for i = 1, 10000 do call('HSET', 'details', job_id(1) .. 'c' .. i, 'd1', job_id(1) .. 'm' .. i, 'counted') end
local args = { 'channel', '60000000', '1000', '-1', '0', 60000000, WORKER, 0, 60, 0, 20 }
for i = 1, 20 do
  for _, word in ipairs({ delivery(i), 'done', 0, '{}' }) do args[#args + 1] = word end
end
args[#args + 1] = 0
return queue('running', 'parked', 'history', 'tallies'), args

-- [queue.purge] at most 1600: letters of jobs with ten thousand children each.
for i = 1, 100 do call('HSET', 'jobs', job_id(i), job(job_id(i), 'z', PAST, 64, extra('n', '10000'))) end
for i = 1, 10000 do call('HSET', 'details', job_id(1) .. 'c' .. i, 'd1', job_id(1) .. 'm' .. i, 'counted') end
zfill('dead', PAST, job_id)
local args = setting()
for i = 1, 100 do args[#args + 1] = job_id(i) end
return queue(), args

-- [queue.schedule] at most 600: what became of the children of jobs that are over.
call('HSET', 'running', '', 1)
zfill('parents', 8900000000000000, function(i) return '-' .. job_id(i) end)
for i = 1, 5000 do call('HSET', 'details', job_id(1) .. 'c' .. i, 'd1', job_id(1) .. 'm' .. i, 'counted') end
call('HSET', 'details', job_id(1) .. 's', 5000)
return queue('running', 'workers', 'cron', 'crontab', 'kinds', 'timed', 'history', 'tallies', 'flows'),
  setting('me', 1000000, 0, 0, 60)

-- [queue.finish] at most 1700: 64 jobs that are kept, with all details that a job can have.
call('HSET', 'running', '', 1)
for i = 1, 64 do
  call('HSET', 'jobs', job_id(i), string.sub(held(job_id(i), 8), 1, 98) .. '\0\20' .. string.sub(held(job_id(i), 8), 101))
  call('HSET', 'running', job_id(i) .. '\0\20\0\0', 3)
  call('HSET', 'details', job_id(i) .. 'n', 100)
  for n = 0, 99 do call('HSET', 'details', job_id(i) .. 'l' .. n, 'line') end
  for n = 0, 19 do call('HSET', 'details', job_id(i) .. 'a' .. n, 'attempt') end
end
call('HSET', 'meta', 'running', 64)
local args = { 'channel', '60000000', '1000', '86400000', '0', 60000000, WORKER, 0, 60, 0, 64 }
for i = 1, 64 do
  for _, word in ipairs({ job_id(i) .. '\0\20\0\0', 'done', 0, '{}' }) do args[#args + 1] = word end
end
args[#args + 1] = 0
return queue('running', 'parked', 'history', 'tallies'), args
