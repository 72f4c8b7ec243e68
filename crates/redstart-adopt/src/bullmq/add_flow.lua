-- Adds a parent and everything below it, or nothing.
-- KEYS: those of every script, for the queue of the parent; then the same for the other queues of the flow
-- ARGV[3] the number of jobs; then for each, the parent first: the prefix of its queue, the place of its parent among the jobs (0 = none), and
--   13 as adding.lua reads them. All have ids.
-- Returns {outcome, id, mixed} of the parent, as add.lua, or {-7, id, 0}, {-8, id, 0} for a child that cannot be one; then nothing
--   was written.
local at = now()
local jobs = {}
for n = 1, tonumber(ARGV[3]) do
  local first = 4 + (n - 1) * 15
  jobs[n] = job_at(first + 2)
  jobs[n].q, jobs[n].above = queue(ARGV[first]), tonumber(ARGV[first + 1])
end
local top = jobs[1]
if call('EXISTS', top.q.base .. top.id) == 1 then
  local outcome, id = add(top.q, top, at)
  return {outcome, id, mixed}
end

-- A parent of a job that belongs to another, or that is not added, would wait for ever.
local parents, guards = {}, {}
for n = 2, #jobs do
  local job = jobs[n]
  local key, guard = job.q.base .. job.id, job.q.base .. 'de:' .. job.dedup
  if parents[key] and parents[key] ~= job.parent then return {-7, job.id, 0} end
  parents[key] = job.parent
  if job.dedup ~= '' then
    if guards[guard] then return {-8, job.id, 0} end
    guards[guard] = true
  end
  if call('EXISTS', key) == 1 then
    if belongs(job.q, job.id, job.parent) then return {-7, job.id, 0} end
  elseif job.dedup ~= '' and guarded(job.q, job.dedup) then
    return {-8, job.id, 0}
  end
end

local outcomes, id = {}, nil
for n, job in ipairs(jobs) do
  -- What is below a job that exists was added with it.
  if n == 1 or outcomes[job.above] == 0 then
    local outcome, added = add(job.q, job, at)
    outcomes[n], id = outcome, id or added
  else
    outcomes[n] = 1
  end
end
return {outcomes[1], id, mixed}
