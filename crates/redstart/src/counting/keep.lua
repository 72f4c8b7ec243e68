-- Fragment: how long a key is kept. A key's life is only ever extended, so that of two instances with different
-- lifetimes the longer one holds.
--
-- KEYS     none of its own: the caller gives the key
-- Defines  keep_until(key, existed, at)  existed: whether the key was there before this script wrote it;
--          at: ms since the epoch as text, '0' for ever
local function keep_until(key, existed, at)
  if at == '0' then
    if existed then
      redis.call('PERSIST', key)
    end
  elseif existed then
    -- GT leaves a key without an expiry as it is.
    redis.call('PEXPIREAT', key, at, 'GT')
  else
    redis.call('PEXPIREAT', key, at)
  end
end

