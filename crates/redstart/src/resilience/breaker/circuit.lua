-- The circuit: closed, open or half-open, and its changes.
-- KEYS[1] circuit  hash: state (c, o, h), gen, until (us, end of open), ok (probes that succeeded)
-- KEYS[2] window   what was seen while closed: list (by count) or hash (by time)
-- KEYS[3] probes   sorted set: probe by the microsecond at which its lease ends
-- ARGV[1] channel  ARGV[2] ms to keep all of it  ARGV[3] us to stay open  ARGV[4] probes
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local seen = redis.call('HMGET', KEYS[1], 'state', 'gen', 'until', 'ok')
local circuit = {
  state = seen[1] or 'c',
  gen = tonumber(seen[2] or 0),
  till = tonumber(seen[3] or 0),
  ok = tonumber(seen[4] or 0),
}

-- State, generation and microseconds until the end of open.
local function describe()
  local left = circuit.state == 'o' and math.max(0, circuit.till - now) or 0
  return { circuit.state, circuit.gen, left }
end

-- A new state is a new generation. It is at least the time, so that it grows even if the keys were lost.
local function turn(state)
  circuit.state, circuit.gen, circuit.ok = state, math.max(circuit.gen + 1, now), 0
  if state == 'o' then circuit.till = now + ARGV[3] end
  redis.call('HSET', KEYS[1], 'state', state, 'gen', string.format('%.0f', circuit.gen),
    'until', string.format('%.0f', circuit.till), 'ok', 0)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('DEL', KEYS[2], KEYS[3])
  local said = describe()
  redis.call('SPUBLISH', ARGV[1], string.format('%s %.0f %.0f', said[1], said[2], said[3]))
end
