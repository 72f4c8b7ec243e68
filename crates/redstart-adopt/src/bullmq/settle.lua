-- Moves at most 1,000 ids that two versions left in different lists to the list that a pause or resume by either version keeps.
-- KEYS: those of every script
-- Returns {how many are still to be moved, mixed, paused, last}: mixed is 1 if versions 5 and 6 share the queue, paused is 1 while it is
--   paused, and last is the id of its last event: later ones tell that something was added, or that the queue was paused or resumed.
if settle(here) then wake(here) end
local paused = is_paused(here)
local left = 0
if call('EXISTS', KEYS[3]) == 1 then left = call('LLEN', paused and KEYS[1] or KEYS[3]) end
local last = call('XREVRANGE', KEYS[11], '+', '-', 'COUNT', 1)[1]
return {left, mixed, paused and 1 or 0, last and last[1] or '0-0'}
