-- Frees a partition that has moved. Its header stays for a while: it redirects processes that still use this
-- generation, and prevents the partition from being created again by mistake.
-- KEYS[1] the first layer, or the header  KEYS[2..] everything else
-- ARGV[1] the configuration  ARGV[2] how long the header stays, in ms
-- Returns 1 if it was freed, 0 if it has not moved
local head = redis.call('GETRANGE', KEYS[1], 0, 45)
if #head == 0 then
  -- Its header was lost; nobody reads the rest.
  redis.call('UNLINK', unpack(KEYS))
  return 1
end
if #head < 46 or string.sub(head, 1, 36) ~= ARGV[1] or string.sub(head, 37, 37) ~= 'm' then
  return 0
end
redis.call('UNLINK', unpack(KEYS))
redis.call('SET', KEYS[1], head, 'PX', ARGV[2])
return 1
