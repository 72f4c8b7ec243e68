-- Takes from the bucket that was looked at: cost is added to debt.
debt = debt + cost
redis.call('SET', key, '', 'PX', debt)
