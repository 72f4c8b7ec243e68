-- Makes a permit's lease run for at least `ttl` from now, unless it has ended. Never shortens it.
--
-- KEYS     1  the permits (sorted set: owner's token -> end of its lease in us)
-- ARGV     1  the owner's token
--          2  ttl in ms
--          3  unused here: the number of permits
-- Returns  1 if the lease still ran, else 0
return leases.extend(KEYS[1], ARGV[1], now(), ARGV[2] * 1000) and 1 or 0
