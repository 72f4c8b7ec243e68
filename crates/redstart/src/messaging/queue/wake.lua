-- Fragment: waking workers.
--
-- Defines  wake_idle(idle, channel, jobs): wakes as many workers of the set `idle` as there are jobs. Each listens on a
--          channel of its own, under the first half of the name of its registration. If nobody listens, the worker has
--          died, and the next one is woken instead.
local function wake_idle(idle, channel, jobs)
  while jobs > 0 do
    local worker = redis.call('ZPOPMIN', idle)[1]
    if not worker then return end
    if redis.call('SPUBLISH', channel .. ':' .. string.sub(worker, 1, 32), '') > 0 then jobs = jobs - 1 end
  end
end
