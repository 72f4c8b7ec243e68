-- The time of the server that has the queue. After now.lua.
--
-- KEYS  1 jobs
-- ARGV  none
-- Returns  microseconds since 1970
return now()
