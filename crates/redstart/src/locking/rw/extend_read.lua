-- Makes a reader's lease run for at least `ttl` from now, unless it has ended. Never shortens it.
--
-- KEYS     1  unused here: the writer
--          2  the readers (sorted set: token -> end of its lease in us)
--          3-4  unused here: the waiting writers, the last fence token
-- ARGV     1  the reader's token
--          2  ttl in ms
-- Returns  1 if the lease still ran, else 0
return leases.extend(KEYS[2], ARGV[1], now(), ARGV[2] * 1000) and 1 or 0
