-- Moves at most 1,000 ids that two versions left in different lists to the list that a pause or resume by either version keeps.
-- Returns how many are still to be moved.
settle(here)
wake(here)
if call('EXISTS', KEYS[3]) == 0 then return 0 end
return call('LLEN', is_paused(here) and KEYS[1] or KEYS[3])
