-- The time of the server that has a shard. After now.lua.
--
-- KEYS     1  sale
-- Returns  microseconds since 1970
return now()
