-- Fragment: the circuit and its changes. After now.lua.
--
-- KEYS     1  circuit (hash: state c, o or h; gen; until, the end of open in us; ok, probes that succeeded)
--          2  window, what was seen while closed; see the report that counts it
--          3  probes (leased set)
--          4  trouble, who saw what; see the report that counts it
-- ARGV     1  channel of changes
--          2  ms to keep the keys of a quiet circuit
--          3  us to stay open
--          4  number of probes
-- Defines  at, the present in us; circuit; describe() -> {state, generation, us until the end of open};
--          change_to(state)
local at = now()
local seen = redis.call('HMGET', KEYS[1], 'state', 'gen', 'until', 'ok')
local circuit = {
  state = seen[1] or 'c',
  gen = tonumber(seen[2] or 0),
  till = tonumber(seen[3] or 0),
  ok = tonumber(seen[4] or 0),
}

local function describe()
  local left = circuit.state == 'o' and math.max(0, circuit.till - at) or 0
  return { circuit.state, circuit.gen, left }
end

-- A new state is a new generation. It is at least the time, so that it grows even if the keys were lost.
local function change_to(state)
  circuit.state, circuit.gen, circuit.ok = state, math.max(circuit.gen + 1, at), 0
  local keep = tonumber(ARGV[2])
  if state == 'o' then
    circuit.till = at + ARGV[3]
    keep = keep + math.ceil(ARGV[3] / 1000)
  end
  redis.call('HSET', KEYS[1], 'state', state, 'gen', string.format('%.0f', circuit.gen),
    'until', string.format('%.0f', circuit.till), 'ok', 0)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', keep))
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
  local said = describe()
  redis.call('SPUBLISH', ARGV[1], string.format('%s %.0f %.0f', said[1], said[2], said[3]))
end
