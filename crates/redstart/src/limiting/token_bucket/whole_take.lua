-- Takes from the bucket that was looked at: cost is added to debt. A key that is there needs only another end.
debt = debt + cost
if debt > tonumber(cost) then
  redis.call('PEXPIRE', key, debt)
else
  redis.call('SET', key, '', 'PX', debt)
end
