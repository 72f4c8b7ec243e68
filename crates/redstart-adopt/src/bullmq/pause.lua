-- Pauses a queue, or resumes it, and moves at most 1,000 ids to where the declared version looks for them.
-- A list is never renamed over another that exists: that is how jobs get lost when two versions share a queue.
-- ARGV[3] 1 = pause, 0 = resume  [4] 1 = the first call, which sets the state and tells of it
-- Returns how many ids are still to be moved.
local pause = ARGV[3] == '1'
if ARGV[4] == '1' then
  if pause then
    call('HSET', KEYS[4], 'paused', 1)
    call('DEL', KEYS[12])
  else
    call('HDEL', KEYS[4], 'paused')
  end
  event(here, pause and 'paused' or 'resumed')
end
-- Workers take from the right. What is moved goes to the left of what is there: it waits its turn.
local from, to = KEYS[3], KEYS[1]
if pause then
  if major(here) >= 6 then return 0 end
  from, to = KEYS[1], KEYS[3]
end
-- A resumed queue may have been paused again meanwhile.
if is_paused(here) ~= pause then return 0 end
-- Nothing is there to be renamed over.
if call('EXISTS', from) == 1 and call('EXISTS', to) == 0 then call('RENAME', from, to) end
for _ = 1, 1000 do
  if not call('LMOVE', from, to, 'RIGHT', 'LEFT') then break end
end
if not pause then
  if call('LLEN', KEYS[1]) + call('ZCARD', KEYS[7]) > 0 then wake(here) else wake_later(here) end
end
return call('LLEN', from)
