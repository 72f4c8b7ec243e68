-- [leaderboard.page] A page of 100 behind a cursor among members with the same score.
zfill('board', 17)
return { 'board', 'counter', 'scores', 'counts' }, { 'high', 'competition', 1, 1, 'after', '17', 'member-002500x', 100 }

-- [leaderboard.rank]
zfill('board', function(i) return i end)
return { 'board', 'counter', 'scores', 'counts' }, { 'high', 'competition', 1, 1, name(1) }

-- [leaderboard.remove]
zfill('board', function(i) return i end)
zfill('scores', function(i) return i end, function(i) return i end)
hfill('counts', 1, function(i) return i end)
return { 'board', 'counter', 'scores', 'counts' }, { 'high', 'dense', 1, 1, name(1) }

-- [leaderboard.submit]
zfill('board', function(i) return i end)
zfill('scores', function(i) return i end, function(i) return i end)
hfill('counts', 1, function(i) return i end)
return { 'board', 'counter', 'scores', 'counts' }, { 'hdl', name(1), 17 }

-- [sharded.locate]
zfill('shard', 17)
return { 'shard' }, { 'high', '17', 'member-002500x' }

-- [sharded.slice] 100 members.
zfill('shard', 17)
return { 'shard' }, { 'high', 1000, 1099 }

-- [sharded.submit]
zfill('shard', 17)
return { 'shard' }, { 'high', 'best', name(1), 18 }

-- [weighted.pick] 10 of 4096 members.
for node = 1, 4096 do
  local low = 1
  while node % (low * 2) == 0 do low = low * 2 end
  call('HSET', 'tree', node, low)
  call('HSET', 'members', node, name(node))
  call('HSET', 'weights', node, 1)
end
call('HSET', 'meta', 'capacity', 4096, 'used', 4096, 'count', 4096, 'total', 4096)
return { 'members', 'places', 'weights', 'tree', 'meta', 'again' }, { 'without', 10, 'seed' }

-- [weighted.set] The last member goes, and with it a tree that was large once.
hfill('tree', 0)
call('HSET', 'members', 1, 'last')
call('HSET', 'places', 'last', 1)
call('HSET', 'weights', 1, 5)
lfill('again')
call('HSET', 'meta', 'capacity', 8192, 'used', N, 'count', 1, 'total', 5)
return { 'members', 'places', 'weights', 'tree', 'meta', 'again' }, { 'last', 0 }
