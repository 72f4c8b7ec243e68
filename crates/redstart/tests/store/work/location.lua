-- [places.look] at most 1300: 100 members.
local args = {}
for i = 1, N do call('GEOADD', 'positions', i % 90, i % 80, name(i)) end
zfill('deadlines', FUTURE)
for i = 1, 100 do args[i] = name(i) end
return { 'positions', 'deadlines' }, args

-- [places.nearby] at most 4500: all members are in the area, and half of them are stale.
for i = 1, N do call('GEOADD', 'positions', 13 + i / 100000, 52, name(i)) end
zfill('deadlines', function(i) return i % 2 == 0 and 1 or FUTURE / 1000 end)
return { 'positions', 'deadlines' }, { 'point', '13', '52', 'radius', '10000', '', 20, '', 0, 0 }

-- [places.put]
for i = 1, N do call('GEOADD', 'positions', i % 90, i % 80, name(i)) end
zfill('deadlines', 1)
return { 'positions', 'deadlines' }, { 'me', '13', '52', 60000, 'any' }

-- [places.remove]
for i = 1, N do call('GEOADD', 'positions', i % 90, i % 80, name(i)) end
zfill('deadlines', FUTURE)
return { 'positions', 'deadlines' }, { name(1) }
