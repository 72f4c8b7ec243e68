-- Estimates the union of sketches.
-- KEYS    the sketches
-- ARGV    none
-- Returns the estimate
return redis.call('PFCOUNT', unpack(KEYS))
