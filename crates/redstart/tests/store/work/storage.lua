-- [array.set]
call('SETRANGE', 'array', 1048576, 'x')
return { 'array' }, { 4096, 'record', 60000 }
