-- Writes the progress of a job, or a line to its log.
-- KEYS: those of every script, of which it uses events, and meta for the length of events
-- ARGV[3] id  [4] progress or log  [5] the text
-- Returns 0, or -1 if there is no such job.
local key = prefix .. ARGV[3]
if call('EXISTS', key) == 0 then return -1 end
if ARGV[4] == 'log' then
  call('RPUSH', key .. ':logs', ARGV[5])
  local options = object_in(call('HGET', key, 'opts')) or {}
  local keep = tonumber(given(options.kl))
  if keep then call('LTRIM', key .. ':logs', whole(-keep), -1) end
else
  call('HSET', key, 'progress', ARGV[5])
  event(here, 'progress', 'jobId', ARGV[3], 'data', ARGV[5])
end
return 0
