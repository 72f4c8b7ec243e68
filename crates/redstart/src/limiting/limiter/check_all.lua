-- Asks several limits of one subject and takes from all of them or from none. After now.lua and the rules' fragments.
--
-- KEYS     the state of each limit, in order
-- ARGV     1  'take', or 'look' to change nothing in any case
--          then five for each limit: the name of its rule and four arguments
--            whole    cost, room (both in ms), 0, ''              as in check_whole.lua
--            exact    cost, room, rate, ''                        as in check_exact.lua
--            ledger   cost, room, rate, name of a busy period     as in check_ledger.lua
--            fixed    cost, limit, window in ms, ''
--            log      cost, limit, window in us, id of this request
--            counter  cost, limit, window in ms, ''
-- Returns  for each limit {wait, state, reset} as it is, or {0, state, reset, receipt} after taking from all
local rules = {
  whole = function(key, cost, room)
    local over, debt = whole_look(key, room)
    if over > 0 then return over, debt end
    return 0, debt, function() return whole_take(key, cost, debt) end
  end,
  exact = function(key, cost, room, rate)
    local over, debt, second, tick = exact_look(key, room, rate)
    if over > 0 then return over, debt end
    return 0, debt, function() return exact_take(key, cost, rate, debt, second, tick) end
  end,
  ledger = ledger_bucket,
  fixed = function(key, cost, limit, window)
    local wait, used, left = fixed_look(key, cost, limit, window)
    if wait > 0 then return wait, used, nil, left end
    return 0, used, function() return fixed_take(key, cost, window, left) end, left
  end,
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
