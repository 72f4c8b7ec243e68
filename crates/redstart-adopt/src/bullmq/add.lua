-- Adds a job. After layout.lua and adding.lua.
-- KEYS: those of the queue, in the order that layout.lua names them
-- ARGV[3] and the 12 that follow: the job, as adding.lua reads it
-- Returns {outcome, id, mixed}: the first two as adding.lua has them, mixed is 1 if versions 5 and 6 share the queue.
local outcome, id = add(here, job_at(3), now())
return {outcome, id, mixed}
