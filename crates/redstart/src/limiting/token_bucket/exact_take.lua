-- Takes from the bucket that was looked at: cost is added to debt.
debt = debt + cost
redis.call('SET', key, string.format('%s%.0f', time[1], tick + debt), 'PX', math.ceil(debt / rate / 1000))
