-- After the database has committed: drops the applied part of the log and lets the applied values expire.
--
-- Safe from anybody and any number of times, since it says only what the database has.
--
-- KEYS[1] the log
-- KEYS[2…] values
-- ARGV[1] the lowest id that is not applied
-- ARGV[2] how long an applied value is kept, ms
-- ARGV[3] the channel that reports progress
-- ARGV[4…] for each value the id that was applied
--
-- Returns how many entries the log still holds
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1])
for i = 2, #KEYS do
  local id = ARGV[i + 2]
  -- A newer write has another id, and stays pinned.
  if redis.call('GETRANGE', KEYS[i], 0, #id) == id .. '\n' then
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
end
redis.call('SPUBLISH', ARGV[3], 'applied')
return redis.call('XLEN', KEYS[1])
