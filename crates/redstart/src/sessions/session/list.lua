-- Lists the live sessions of an account, a page at a time, in the order of their ends and, of those with the same end, of
-- their ids. A page goes on after a place in that order, whether there is still a session or not, so that none is passed over
-- because others end meanwhile. A session that is renewed moves on, so that it is in a later page at the latest.
--
-- KEYS  1 the index of the account, a sorted set
-- ARGV  1 how many at most  2 the end of the last session of the page before, '' for the first page  3 its id
-- Returns  their ids, each followed by its end
local time = now()
unlist_ended(KEYS[1], time)
local from
if ARGV[2] ~= '' and tonumber(ARGV[2]) > time then
    -- The sessions with this end are in the order of their ids: the first one after the given id is searched by halves.
    from = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2])
    local to = from + redis.call('ZCOUNT', KEYS[1], ARGV[2], ARGV[2])
    while from < to do
        local middle = math.floor((from + to) / 2)
        if redis.call('ZRANGE', KEYS[1], middle, middle)[1] <= ARGV[3] then from = middle + 1 else to = middle end
    end
else
    from = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', time))
end
return redis.call('ZRANGE', KEYS[1], from, from + tonumber(ARGV[1]) - 1, 'WITHSCORES')
