-- Asks several limits of one subject and takes from all of them or from none.
-- KEYS    the state of each limit
-- ARGV[1] 'take', or 'look' to change nothing in any case
-- ARGV    then for each limit: its rule and four arguments of that rule
-- Returns for each limit {wait, state, reset} as it is, or {0, state, reset, receipt} after taking
local rules = {
  whole = whole_bucket,
  exact = exact_bucket,
  ledger = ledger_bucket,
  fixed = fixed_window,
  log = sliding_window,
  counter = sliding_counter,
}
local found, commits = {}, {}
local take = ARGV[1] == 'take'
for i = 1, #KEYS do
  local at = i * 5 - 3
  local wait, state, commit, reset =
    rules[ARGV[at]](KEYS[i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  found[i], commits[i] = { wait, state, reset or 0 }, commit
  if wait > 0 then take = false end
end
if take then
  for i = 1, #KEYS do
    local state, reset, receipt = commits[i]()
    found[i] = { 0, state, reset or 0, receipt or '' }
  end
end
return found
