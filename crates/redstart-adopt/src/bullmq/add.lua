-- Adds a job. After layout.lua and adding.lua.
-- KEYS: those of the queue, in the order that layout.lua names them
-- ARGV[3] and the 12 that follow: the job, as adding.lua reads it
-- Returns {outcome, id}, as adding.lua has them.
return {add(here, job_at(3), now())}
