-- Confirms or cancels a held request.
-- KEYS    sale, requests, holds, users
-- ARGV    request, new state: s sold or c cancelled
-- Returns {'done'} | {'repeated'} | {'refused', state} | {'unknown'}
local found = find(ARGV[1])
if not found then return { 'unknown' } end
if found.state == ARGV[2] then return { 'repeated' } end
if found.state ~= 'h' then return { 'refused', found.state } end
if found.expires <= clock() then
  leave_hold(ARGV[1], found, 'x')
  return { 'refused', 'x' }
end
leave_hold(ARGV[1], found, ARGV[2])
return { 'done' }
