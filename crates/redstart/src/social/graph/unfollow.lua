-- Unfollows, both sides in one step. For accounts of one bucket.
-- KEYS[1] whom a follows  KEYS[2] who follows b
-- ARGV[1] a  ARGV[2] b
-- Returns 1 if a followed b, 0 if not
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[2])
