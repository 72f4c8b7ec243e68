-- Whether a job could become a child. Reads only.
-- KEYS: those of every script, of which it uses none by name: it reads the keys of jobs, which are the prefix and an id
-- ARGV[3] id or ''  [4] deduplication id or ''  [5] key of the parent, '' = it has none yet
-- Returns 0, -7 if there is such a job and it has another parent, -8 if it would be deduplicated.
local id, dedup = ARGV[3], ARGV[4]
if id ~= '' and call('EXISTS', prefix .. id) == 1 then
  local other = call('HGET', prefix .. id, 'parentKey')
  if other and other ~= '' and other ~= ARGV[5] and call('EXISTS', other) == 1 then return -7 end
  return 0
end
if dedup ~= '' then
  local guard = prefix .. 'de:' .. dedup
  local holder = call('GET', guard)
  if holder and (call('PTTL', guard) >= 0 or call('EXISTS', prefix .. holder) == 1) then return -8 end
end
return 0
