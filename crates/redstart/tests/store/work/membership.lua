-- [bloom.add] at most 8000: 100 elements of 7 bits each, in the second of two layers of a megabyte.
local config = string.rep('c', 36)
for _, layer in ipairs({ 'one', 'two' }) do
  call('SETBIT', layer, 8 * 1048576, 0)
  call('SETRANGE', layer, 0, config .. 'o' .. char(2) .. struct.pack('<I4I4', 0, 0))
end
local args = { 2, config, config, 7, 7, 100000 }
for i = 1, 100 * 14 do
  args[#args + 1] = 400 + i * 5000
end
return { 'one', 'two' }, args

-- [bloom.contains] at most 7500: 100 elements of 7 bits each, in two layers of a megabyte.
local config = string.rep('c', 36)
for _, layer in ipairs({ 'one', 'two' }) do
  call('SETBIT', layer, 8 * 1048576, 0)
  call('SETRANGE', layer, 0, config .. 'o' .. char(2) .. struct.pack('<I4I4', 0, 0))
end
local args = { 2, config, config, 7, 7, 0 }
for i = 1, 100 * 14 do
  args[#args + 1] = 400 + i * 5000
end
return { 'one', 'two' }, args

-- [bloom.create]
return { 'one' }, { string.rep('c', 36), 8 * 1048576 }

-- [bloom.grow]
call('SETRANGE', 'one', 0, string.rep('c', 36) .. 'o' .. char(1) .. struct.pack('<I4I4', 0, 0))
return { 'one', 'two' }, { string.rep('c', 36), 1, string.rep('d', 36), 8 * 1048576 }

-- [bloom.layers]
call('SETRANGE', 'one', 0, string.rep('c', 36) .. 'o' .. char(1) .. struct.pack('<I4I4', 0, 0))
return { 'one' }, { string.rep('c', 36) }

-- [bloom.mark]
call('SETRANGE', 'one', 0, string.rep('c', 36) .. 'o' .. char(1) .. struct.pack('<I4I4', 0, 0))
return { 'one' }, { string.rep('c', 36), 'o', 0, 'b', 2 }

-- [bloom.named]
call('HSET', 'root', 'phase', 'open', 'current', 1)
return { 'root' }, {}

-- [bloom.native] 100 elements.
call('SET', 'header', string.rep('c', 36) .. 'o' .. char(1) .. struct.pack('<I4I4', 0, 0))
call('BF.RESERVE', 'filter', 0.01, 100000)
local args = { string.rep('c', 36), 'BF.MADD' }
for i = 1, 100 do
  args[#args + 1] = name(i)
end
return { 'header', 'filter' }, args

-- [bloom.native_create]
return { 'header', 'filter' }, { string.rep('c', 36), '0.01', 100000 }

-- [bloom.native_stats]
call('SET', 'header', string.rep('c', 36) .. 'o' .. char(1) .. struct.pack('<I4I4', 0, 0))
call('BF.RESERVE', 'filter', 0.01, 100000)
return { 'header', 'filter' }, { string.rep('c', 36) }

-- [bloom.retire]
call('SETBIT', 'one', 8 * 1048576, 0)
call('SETRANGE', 'one', 0, string.rep('c', 36) .. 'm' .. char(1) .. struct.pack('<I4I4', 0, 0))
return { 'one', 'two', 'three' }, { string.rep('c', 36), 1000 }

-- [bloom.root]
call('HSET', 'root', 'phase', 'open', 'current', 1)
return { 'root' }, { 'open', 1, '', 'building', 1, 2 }

-- [bloom.stats] at most 2600: a key of 8 MiB, the largest.
call('SETBIT', 'one', 8 * 8 * 1048576 - 1, 0)
call('SETRANGE', 'one', 0, string.rep('c', 36) .. 'o' .. char(1) .. struct.pack('<I4I4', 0, 0))
return { 'one' }, { string.rep('c', 36) }
