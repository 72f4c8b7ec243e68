-- Renews a worker's hold on a job.
-- ARGV[3] id  [4] token  [5] lease in ms
-- Returns 1, or 0 if the worker does not hold it any more.
local lock = prefix .. ARGV[3] .. ':lock'
if call('GET', lock) ~= ARGV[4] then return 0 end
call('PEXPIRE', lock, ARGV[5])
call('SREM', KEYS[13], ARGV[3])
return 1
