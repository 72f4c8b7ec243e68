-- Gives a session another id, with its data and its TTL. The old id is gone in the same step.
--
-- KEYS     1  the session (string: JSON)
--          2  its new key
-- Returns  1, or 0 if there is no such session or the new id is taken
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
return redis.call('RENAMENX', KEYS[1], KEYS[2])
