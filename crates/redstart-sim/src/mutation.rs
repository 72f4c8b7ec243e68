//! Checks and mends that are taken out, one at a time, to show that the judges notice.

use crate::workload::Pattern::{self, *};

/// One check or mend less.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// What is missing.
    pub name: &'static str,
    /// The pattern whose judge must notice.
    pub pattern: Pattern,
    /// How it is taken out.
    pub change: Change,
}

/// How a check is taken out.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// In a script: its name, a piece of its text, and what stands there instead.
    Script(&'static str, &'static str, &'static str),
    /// In the library's code, by the name of its switch.
    Switch(&'static str),
}

impl Mutation {
    /// The script that is replaced, by name and source.
    ///
    /// # Panics
    ///
    /// If there is no such script or it has no such text: the mutation would change nothing.
    pub fn script(&self) -> Option<(&'static str, &'static str)> {
        let Change::Script(name, from, to) = self.change else {
            return None;
        };
        let all = redstart::script::all();
        let Some(script) = all.iter().find(|script| script.name() == name) else {
            panic!("{}: there is no script {name}", self.name);
        };
        let source = script.source();
        assert!(
            source.contains(from),
            "{}: {name} has no {from:?}",
            self.name
        );
        Some((name, source.replacen(from, to, 1).leak()))
    }

    /// The switch that is thrown.
    pub fn switch(&self) -> Option<&'static str> {
        match self.change {
            Change::Switch(name) => Some(name),
            Change::Script(..) => None,
        }
    }
}

const fn script(
    name: &'static str,
    pattern: Pattern,
    script: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutation {
    Mutation {
        name,
        pattern,
        change: Change::Script(script, from, to),
    }
}

const fn switch(name: &'static str, pattern: Pattern, switch: &'static str) -> Mutation {
    Mutation {
        name,
        pattern,
        change: Change::Switch(switch),
    }
}

/// All of them.
#[rustfmt::skip]
pub static MUTATIONS: &[Mutation] = &[
    switch("a write is resent after a lost reply", Store, "a write is not resent"),
    switch("doubt about a lost reply is dropped", Store, "doubt about a lost reply"),
    switch("what was sent counts as unsent", Store, "what was sent counts as sent"),
    switch("a late reply goes to the next caller", Store, "late replies keep their place"),
    switch("an old Sentinel master is believed", Store, "sentinels are listened to"),
    switch("doubt is dropped in pipelines", Store, "doubt about a lost pipeline"),
    switch("what the log did not take counts as undone", Store, "doubt about what is not kept"),
    switch("no look at the map after time-outs", Store, "the map is read after a time-out"),
    script("a release without owner", Mutex, "mutex.release", "if holder == ARGV[1] then", "if holder then"),
    script("a lock that is granted twice", Mutex, "mutex.acquire", "'NX', ", ""),
    script("a fence that only counts", Mutex, "mutex.acquire", "time[1] .. string.sub('00000' .. time[2], -6)", "'1'"),
    script("a lock without an end", Mutex, "mutex.acquire", "'NX', 'PX', ARGV[2]", "'NX'"),
    script("a fence that trusts the clock alone", Mutex, "mutex.acquire", "if last and (#last ~= #fence or last >= fence) then", "if false then"),
    script("a release that does nothing", Mutex, "mutex.release", "return redis.call('DEL', KEYS[1])", "return 1"),
    switch("a lease that is renewed after its end", Mutex, "a lease that has ended stays so"),
    switch("a lease that is renewed only once", Mutex, "a lease is renewed again"),
    switch("a lease that one failed renewal ends", Mutex, "a renewal that failed is tried again"),
    switch("a permit that is renewed only once", Locks, "a lease is renewed again"),
    switch("a redirection that is not followed", Store, "redirections are followed"),
    switch("a connection that is made again after five seconds", Store, "a lost connection is made again at once"),
    switch("a forgotten script that is an error", Counting, "a script that was forgotten is no error"),
    switch("a worker that one failed renewal ends", Queue, "a renewal that failed is no loss"),
    switch("a heartbeat that one error ends", ReliableList, "a heartbeat goes on after an error"),
    switch("a take without a lease", ReliableList, "a take without a lease renews it first"),
    switch("a heartbeat that outlives its consumer", ReliableList, "a heartbeat ends with its consumer"),
    switch("a gap before every message", Topic, "a gap has a reason"),
    switch("writes that are applied again from the start of the log", WriteBehind, "the sink says what was applied"),
    script("a window that ignores the cost", Limiter, "sliding_window.check", "local over = used + cost - limit", "local over = used + 1 - limit"),
    script("a bucket that forgets its debt", Limiter, "token_bucket.check_exact", "local after = debt + cost", "local after = tonumber(cost)"),
    script("a fixed window that forgets its count", Limiter, "fixed_window.check", "'INCRBY', key, cost", "'INCRBY', key, 0"),
    script("a log without an end", Limiter, "sliding_window.check", "redis.call('PEXPIRE', key, math.ceil(window / 1000) + 1)", ""),
    script("a refund that gives back too much", Limiter, "token_bucket.refund", "math.min(tonumber(ARGV[1]), debt - behind)", "debt"),
    script("a refund that gives nothing back", Limiter, "token_bucket.refund", "if not value then return 0 end", "if true then return 0 end"),
    script("a refund of a window that gives nothing back", Limiter, "fixed_window.refund", "if not count or", "if true or"),
    script("a refusal that is charged", Limiter, "sliding_window.check", "if wait > 0 then return { wait, used, reset } end", "if wait > 0 then redis.call('ZADD', KEYS[1], string.format('%.0f', now()), ARGV[4] .. ':0') return { wait, used, reset } end"),
    script("a bucket that refuses its last unit", Limiter, "token_bucket.check_exact", "if over > 0 then return -over end", "if over > -1 then return -math.max(1, over) end"),
    script("a reservation without replay", Stock, "stock.reserve", "if found then", "if false then"),
    script("an expired hold whose units are lost", Stock, "stock.reserve", "redis.call('HINCRBY', KEYS[1], 'free', found.qty)", ""),
    script("a sale without a cap", Stock, "stock.reserve", "if capped then return", "if false then return"),
    script("a hold that is confirmed after its end", Stock, "stock.settle", "if found.state == 'h' and found.expires <= at then", "if false then"),
    script("a request that is held after its cancel", Stock, "stock.settle", "redis.call('HSET', KEYS[2], ARGV[1], record('c', 0, 0, ''))", ""),
    script("a confirmation after a cancel", Stock, "stock.settle", "if found.state ~= (ARGV[2] == 'r' and 's' or 'h') then", "if false then"),
    script("unknown work that is taken for free", Idempotency, "idempotency.begin", "if ARGV[5] ~= '1' then return { 'unknown' } end", ""),
    script("a release that frees a finished key", Idempotency, "idempotency.release", "if result and known_until >= ends then return 0 end\nlocal held = token == ARGV[1] and not result", "local held = token and true"),
    script("an answer that is not replayed", Idempotency, "idempotency.begin", "if result then return { 'replay', result } end", ""),
    switch("a claim that is freed by a drop", Idempotency, "a drop frees no claim"),
    script("a fingerprint that is not looked at", Idempotency, "idempotency.begin", "if fingerprint ~= ARGV[1] then return { 'mismatch' } end", ""),
    script("a key that never fits its request", Idempotency, "idempotency.begin", "if fingerprint ~= ARGV[1] then", "if true then"),
    script("a call-off that frees nothing", Idempotency, "idempotency.release", "redis.call('HDEL', KEYS[1], 'f', 't', 'e', 'r', 'u', 'x')", ""),
    script("a claim that is taken after it was called off", Idempotency, "idempotency.begin", "if void then return { 'void' } end", ""),
    script("a second claim of a run that arrives after its call-off", Idempotency, "idempotency.release", "redis.call('HLEN', KEYS[1]) < 1000", "not held and redis.call('HLEN', KEYS[1]) < 1000"),
    script("a call-off that frees the key of another run", Idempotency, "idempotency.release", "redis.call('HSET', KEYS[1], 'v' .. ARGV[1]", "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'v' .. ARGV[1]"),
    switch("work that begins after its claim has ended", Idempotency, "late work is claimed again"),
    script("jobs of a dead worker that are dropped", Queue, "queue.reclaim", "make_ready('LPUSH', back)", ""),
    script("a cancelled take whose jobs are dropped", Queue, "queue.reconcile", "make_ready('LPUSH', back)", ""),
    script("a leaving worker that drops its jobs", Queue, "queue.leave", "make_ready('LPUSH', back)", ""),
    script("a worker that is shut down and does not leave", Queue, "queue.leave", "local time, back, count = now(), {}, 0", "if true then return 0 end local time, back, count = now(), {}, 0"),
    script("a silent worker that is never noticed", Queue, "queue.reclaim", "tonumber(until_us) > now", "true"),
    script("a heartbeat that does not count", Queue, "queue.renew", "redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[2]), ARGV[1])", ""),
    script("a delay that is left out", Queue, "queue.enqueue", "delay = tonumber(ARGV[7])", "delay = 0"),
    script("a done job that is handed out again", Queue, "queue.finish", "call('HDEL', KEYS[1], unpack(ids))", "for _, id in ipairs(ids) do if call('HSETNX', meta, 'again' .. id, 1) == 1 then call('HSET', KEYS[1], id, 'Jr' .. string.sub(call('HGET', KEYS[1], id), 51)) call('RPUSH', KEYS[2], id) else call('HDEL', KEYS[1], id) end end"),
    script("a failed job that does not wait", Queue, "queue.finish", "retry = function(record, since, wait, text)", "retry = function(record, since, _, text) local wait = 0"),
    script("a failed attempt that is not charged", Queue, "queue.finish", "record = charged(note_attempt(record, worker, since, time, text))", "record = note_attempt(record, worker, since, time, text)"),
    script("a dead letter that is dropped", Queue, "queue.finish", "bury(charged(record), text, time)", "conclude(record, 'c', '', time)"),
    switch("a job that begins after its lease has ended", Queue, "a late job does not begin"),
    switch("a lease whose end is told late", Queue, "a lost lease is told at once"),
    switch("a tick that is lost while workers are busy", Cron, "ticks do not wait for a free slot"),
    script("a tick that every worker enqueues", Cron, "queue.cron_fire", "if not current or format('%.0f', tonumber(current)) ~= ARGV[7] then return 0 end", "for i = 9, #ARGV do ARGV[i] = digits(next_turn()) .. sub(ARGV[i], 17) end"),
    switch("a first tick by another server's clock", Cron, "the time of the queue's server"),
    script("a priority item that an old reservation settles", Priority, "priority.reserve", "string.format('%08d', count)", "'00000000'"),
    script("a priority item whose lease never ends", Priority, "priority.reserve", "put_back(KEYS[1], KEYS[2], now)", ""),
    script("a late fill", Cache, "cache.fill", "if redis.call('GET', KEYS[2]) ~= ARGV[1] then", "if false then"),
    script("an invalidation that leaves the lease", Cache, "cache.invalidate", "redis.call('UNLINK', KEYS[2])", ""),
    script("two loaders at a time", Cache, "cache.lease", "return {'wait', redis.call('PTTL', KEYS[2])}", "return {'lease', held}"),
    script("a log that is cut too far", WriteBehind, "write_behind.ack", "'MINID', ARGV[1]", "'MAXLEN', 0"),
    script("burials that must come in order", WriteBehind, "write_behind.bury", "  new = new + redis.call('ZADD'", "  local last = redis.call('HGET', KEYS[3], '') if last and id < last then return redis.error_reply('ERR the id is smaller') end redis.call('HSET', KEYS[3], '', id)\n  new = new + redis.call('ZADD'"),
    script("an applied value that stays", WriteBehind, "write_behind.ack", "redis.call('PEXPIRE', KEYS[i], ARGV[2])", ""),
    script("an index whose time is shortened", Sessions, "session.create", "if redis.call('PTTL', index) < wanted then", "if true then"),
    script("a logout that leaves the session", Sessions, "session.revoke", "return redis.call('UNLINK', unpack(KEYS, 2))", "return #KEYS - 1"),
    script("a session that a patch revives", Sessions, "session.patch", "if not session then return 0 end", "if not session then redis.call('HSET', KEYS[1], 'size', '0 0') return 1 end"),
    script("an idle time that is not applied", Sessions, "session.create", "math.min(time + ARGV[1], last)", "last"),
    script("a read that does not renew the idle time", Sessions, "session.load", "if session.time - session.seen <= tonumber(slack) then", "if true then"),
    script("a patch that does not renew the idle time", Sessions, "session.patch", "if session.time - session.seen <= tonumber(slack) then", "if true then"),
    script("a semaphore that does not count", Locks, "semaphore.acquire", "if not leases.runs(KEYS[1], ARGV[1], at) and leases.count(KEYS[1], at) >= tonumber(ARGV[6]) then", "if false then"),
    script("permits without an end", Locks, "semaphore.acquire", "redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(leases.last(key) / 1000)))", ""),
    script("a writer beside readers", Locks, "rw.write", "if last and last > at then", "if false then"),
    script("a reader beside a writer", Locks, "rw.read", "if writer ~= -2 then", "if false then"),
    script("a fair lock that is granted twice", Locks, "fair.acquire", "if not holder and (not head or head == ARGV[1]) then", "if not head or head == ARGV[1] then"),
    script("a second leader", Locks, "leader.campaign", "elseif holder then", "elseif false then"),
    script("a fair lock that passes those in line", Locks, "fair.acquire", "(not head or head == ARGV[1])", "true"),
    script("a fair lock that nobody gets while somebody waits", Locks, "fair.acquire", "(not head or head == ARGV[1])", "not head"),
    script("a semaphore that keeps a permit back", Locks, "semaphore.acquire", "leases.count(KEYS[1], at) >= tonumber(ARGV[6])", "leases.count(KEYS[1], at) >= math.max(1, tonumber(ARGV[6]) - 1)"),
    script("a reader that excludes readers", Locks, "rw.read", "if writer ~= -2 then", "if writer ~= -2 or leases.count(KEYS[2], at) > 0 then"),
    script("a reader that passes waiting writers", Locks, "rw.read", "if waits and waits > at then", "if false then"),
    switch("a lease without allowance for slow clocks", Mutex, "leases allow for slow clocks"),
    switch("an old server that is sent a new command", Mutex, "an old server is asked by script"),
    switch("a first level that is not emptied when its line is lost", FirstLevel, "a lost line empties the first level"),
    switch("a first level without a bound", FirstLevel, "a first level has a bound"),
    script("an invalidation that first levels do not hear", FirstLevel, "cache.invalidate", "redis.call('PUBLISH', ARGV[2], ARGV[3])", ""),
    script("an invalidation that leaves the entry of another version", Cache, "cache.invalidate", "redis.call('UNLINK', KEYS[1], KEYS[3])", "redis.call('UNLINK', KEYS[3])"),
    script("a drained count that is drained again", Counting, "counter.drain", "if out[1] then", "if false then"),
    script("a drained count that stays", Counting, "counter.drain", "redis.call('SET', KEYS[1], '0', 'KEEPTTL')", ""),
    script("an acknowledgement of another count", Counting, "counter.ack", "if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then", "if false then"),
    script("a counter without an end", Counting, "counter.add", "redis.call('PEXPIRE', KEYS[1], ARGV[2])", ""),
    script("visitors that are not recorded", Counting, "uniques.add", "math.min(i + 999, #ARGV)", "i"),
    script("a tie that the later one wins", Leaderboard, "leaderboard.submit", "(high and span - 1 - place or place)", "(high and place or span - 1 - place)"),
    script("a worse score that replaces the best", Leaderboard, "leaderboard.submit", "elseif best and (high", "elseif false and (high"),
    script("a score of nobody that still counts", Leaderboard, "leaderboard.remove", "redis.call('ZREM', KEYS[3], score)", ""),
    script("an evicted filter that says no", Bloom, "bloom.native", "if redis.call('EXISTS', KEYS[2]) == 0 then", "if false then"),
    script("an add that a rebuild does not get", Bloom, "bloom.add", "state == 'b' and 'building' or 'ok'", "'ok'"),
    script("a layer that is not looked at", Bloom, "bloom.contains", "for layer = 1, layers do\n  local known, rest", "for layer = layers, layers do\n  local known, rest"),
    script("a filter that says yes to everything", Bloom, "bloom.contains", "if known[i] then", "if true then"),
    switch("a filter that does not notice a rollback", Bloom, "the current generation is named as such"),
    script("a stream that is trimmed before it was acknowledged", Stream, "stream.trim", "if info['pending'] > 0 then", "if false then"),
    script("a slow group that is forgotten", Stream, "stream.trim", "if not low or before(needed, low) then low = needed end", "low = needed"),
    script("a claim that acknowledges", Stream, "stream.claim", "redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)", "redis.call('XACK', KEYS[1], ARGV[1], id)"),
    script("an event that is delivered without an end", Stream, "stream.claim", "elseif pending[4] >= tonumber(ARGV[5]) then", "elseif false then"),
    script("a dead event that is dropped", Stream, "stream.claim", "redis.call('XADD', KEYS[2], '*', 'event', entry[2][2], 'id', id, 'group', ARGV[1], 'reason', 'delivered too often')", ""),
    switch("a read that begins again", Stream, "a read continues"),
    switch("a gap that is not reported", Topic, "gaps are reported"),
    script("more probes than may be", Breaker, "breaker.admit", "leases.count(KEYS[3], at) < tonumber(ARGV[4])", "true"),
    script("a probe whose place outlives its lease", Breaker, "breaker.admit", "leases.grant(KEYS[3], ARGV[5], at, tonumber(ARGV[6]))", "leases.grant(KEYS[3], ARGV[5], at, 10 * tonumber(ARGV[6]))"),
    script("a cancelled probe that keeps its place", Breaker, "breaker.probed", "local runs = leases.drop(KEYS[3], ARGV[5], at)", "local runs = ARGV[7] ~= 'a' and leases.drop(KEYS[3], ARGV[5], at)"),
    script("a repeated probe that does not count", Breaker, "breaker.admit", "leases.grant(KEYS[3], ARGV[5], at, tonumber(ARGV[6]))", "if leases.runs(KEYS[3], ARGV[5], at) then redis.call('ZREM', KEYS[3], ARGV[5]) else leases.grant(KEYS[3], ARGV[5], at, tonumber(ARGV[6])) end"),
    script("a circuit that never closes", Breaker, "breaker.probed", "if circuit.ok >= tonumber(ARGV[4]) then change_to('c') end", ""),
    script("a quorum vote of a server that may have forgotten", Redlock, "redlock.acquire", "if up <= grace then", "if false then"),
    script("a server that votes for two", Redlock, "redlock.acquire", "'NX', 'PX', ARGV[2]", "'PX', ARGV[2]"),
    script("a vote without an end", Redlock, "redlock.acquire", "'NX', 'PX', ARGV[2]", "'NX'"),
    script("a token that the quorum does not keep", Redlock, "redlock.raise_fence", "redis.call('SET', KEYS[2], ARGV[2])", ""),
    script("a quorum lock that is not given back", Redlock, "redlock.release", "return redis.call('DEL', KEYS[1])", "return 1"),
    script("a renewal that does nothing", Redlock, "redlock.extend", "redis.call('PEXPIRE', KEYS[1], ARGV[2])", ""),
    script("an older row that replaces a newer one", WriteThrough, "cache.settle", "if newer(ARGV[5], max) and newer(ARGV[5], stored) then", "if true then"),
    script("a fence that leaves the lease", WriteThrough, "cache.fence", "redis.call('UNLINK', KEYS[2])", ""),
    script("a fence that nobody sees", WriteThrough, "cache.lease", "if fence ~= -2 then", "if false then"),
    script("an old value that outlives the fence of a dead writer", WriteThrough, "cache.fence", "if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then", "if false then"),
    script("a change without a version that writers under way do not hear", WriteThrough, "cache.settle", "raise(string.rep('\\255', 8))", ""),
    script("an invalidation that writers under way do not hear", WriteThrough, "cache.invalidate", "if redis.call('EXISTS', KEYS[4]) == 1 then", "if false then"),
    script("an old row that outlives the first of several fences", WriteThrough, "cache.settle", "math.ceil((first - time) / 1000)", "math.ceil((last - time) / 1000)"),
    script("a write whose fence has ended", WriteThrough, "cache.settle", "or 0) > time", "or 0) > 0"),
    script("an invalidated tag that is not counted", CacheTags, "cache.invalidate_tag", "number, ARGV[1])", "1, ARGV[1])"),
    script("a tag whose number stands still", CacheTags, "cache.invalidate_tag", "math.max(last + 1, now())", "1"),
    script("a number of a tag that comes again after a loss", CacheTags, "cache.invalidate_tag", "math.max(last + 1, now())", "last + 1"),
    script("a forgotten tag shard that is taken for the old one", CacheTags, "cache.seed_tags", "'-' .. ARGV[1]", "'-7'"),
    script("items of a dead consumer that are dropped", ReliableList, "reliable_list.reap", "redis.call('RPUSH', KEYS[1], unpack(items))", ""),
    script("items of a dead consumer that come back twice", ReliableList, "reliable_list.reap", "redis.call('LTRIM', KEYS[3], #items, -1)", ""),
    script("a dropped item that does not come back", ReliableList, "reliable_list.give_back", "redis.call('RPUSH', KEYS[1], item)", ""),
    script("a silent consumer that is never looked at", ReliableList, "reliable_list.renew", "return redis.call('ZRANGE'", "do return {} end return redis.call('ZRANGE'"),
    script("a silent consumer that is looked at once", ReliableList, "reliable_list.reap", "died + 86400000000 < now", "true"),
    switch("a take that was given up, of a consumer that has left", ReliableList, "a take that was given up"),
    script("a write of a late holder", Fenced, "fenced.write", "if fence < highest then", "if false then"),
    script("a deletion that forgets the token", Fenced, "fenced.write", "redis.call('HDEL', KEYS[1], 'value')", "redis.call('DEL', KEYS[1])"),
    script("a token that is not kept without a value", Fenced, "fenced.write", "  redis.call('HSET', KEYS[1], 'fence', ARGV[1])\n  if", "  if"),
    script("a queue that runs more than it may", QueueLimits, "queue.reserve", "if free < want then", "if false then"),
    script("a group that runs more than it may", QueueLimits, "queue.reserve", "if not has_place and limit[1] > 0 and busy >= limit[1] then return false end", ""),
    script("a unique key that holds nobody off", QueueLimits, "queue.enqueue", "  if holder then\n    holder = sub(holder, 1, 16)", "  if false then\n    holder = sub(holder, 1, 16)"),
    script("a cancelled job that is tried again", QueueLimits, "queue.finish", "if flag(record, 16) and ending", "if false and ending"),
    script("a cancelled job of a dead worker that runs again", QueueLimits, "queue.reclaim", "if flag(record, 16) then", "if false then"),
    script("a cancellation that leaves the job", QueueLimits, "queue.cancel", "local letter, now = state(record), now()", "if state(record) ~= 'x' then return 1 end local letter, now = state(record), now()"),
    script("a unique key that is kept by a job that is over", QueueLimits, "queue.finish", "if key and sub(redis.call('HGET', unique, key) or '', 1, 16) == id_of(record) then", "if false then"),
    script("a mark that is not removed", CheckIns, "check_ins.mark", "KEYS[1], ARGV[1], ARGV[2])", "KEYS[1], ARGV[1], 1)"),
    script("a day that is new every time", CheckIns, "check_ins.mark", "return was", "return 0"),
    script("a year whose life is shortened", CheckIns, "check_ins.mark", "redis.call('PEXPIREAT', key, at, 'GT')", "redis.call('PEXPIREAT', key, at)"),
    script("a year without an end", CheckIns, "check_ins.mark", "    redis.call('PEXPIREAT', key, at)\n", ""),
    script("a user who is new every time", Activity, "activity.mark", "ARGV[i], 1) == 0 then", "ARGV[i], 1) >= 0 then"),
    script("a day that is not combined", Activity, "activity.count", "unpack(KEYS, 2))", "KEYS[2], KEYS[2])"),
    script("a day of active users whose life is shortened", Activity, "activity.mark", "redis.call('PEXPIREAT', key, at, 'GT')", "redis.call('PEXPIREAT', key, at)"),
    script("windows that are never removed", Windowed, "windowed.add", "if at and at < oldest then", "if false then"),
    script("a window that is removed too early", Windowed, "windowed.add", "start - (retain - 1) * length", "start - (retain - 2) * length"),
    script("windows that the shortest memory ends", Windowed, "windowed.add", "if known[3] and tonumber(known[3]) > retain then", "if false then"),
    script("windowed counts without an end", Windowed, "windowed.add", "redis.call('EXPIRE', KEYS[1], retain * length)\nelse", "else"),
    script("a larger number of windows that is not remembered", Windowed, "windowed.add", "if retain == largest and known[3] ~= ARGV[3] then", "if false then"),
    script("a stale member that is still found", Places, "places.look", "if position and not (deadline and tonumber(deadline) <= time) then", "if position then"),
    script("a stale member that is moved", Places, "places.put", "redis.call('ZSCORE', KEYS[1], member) and not (deadline and tonumber(deadline) <= time)", "redis.call('ZSCORE', KEYS[1], member)"),
    script("a deadline that is not renewed", Places, "places.put", "redis.call('ZADD', KEYS[2], string", "redis.call('ZADD', KEYS[2], 'NX', string"),
    script("a removed member that is still found", Places, "places.remove", "local removed = redis.call('ZREM', KEYS[1], ARGV[1])", "local removed = redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0"),
    script("stale members whose keys stay", Places, "places.put", "  redis.call('PEXPIREAT', KEYS[1], last)\n", ""),
    script("a view that outlives its invalidation", SortedView, "sorted_view.drop", "redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])", "redis.call('UNLINK', KEYS[3])"),
    script("a view that is kept after its invalidation", SortedView, "sorted_view.keep", "if redis.call('GET', KEYS[3]) ~= ARGV[1] then", "if false then"),
    script("two clients that build one view", SortedView, "sorted_view.lease", "if held and held ~= ARGV[1] then", "if false then"),
    script("a view without an end", SortedView, "sorted_view.sort", "redis.call('PEXPIRE', KEYS[2], ARGV[2])", ""),
    script("a follow on one side", Graph, "graph.change", "redis.call('ZADD', KEYS[5], at, a)", ""),
    script("a block that leaves the follow", Graph, "graph.change", "redis.call('ZREM', KEYS[4], a)", ""),
    script("a follow of a blocked account", Graph, "graph.change", "if redis.call('ZSCORE', KEYS[3], b) or redis.call('ZSCORE', KEYS[6], a) then", "if false then"),
    script("half of a change that nobody completes", Graph, "graph.repair", "return reply", "return {}"),
    script("an unfinished change that is overtaken", Graph, "graph.intend", "if pending then", "if false then"),
    script("a step of a change that arrives late and counts", Graph, "graph.apply", "if number > seen then", "if true then"),
    script("a follow that completes after its block", Graph, "graph.apply", "if pending and string.sub(pending, 1, 7) == 'follow ' then", "if false then"),
    script("a follow that was undone and is reported as blocked", Graph, "graph.complete", "return redis.call('ZSCORE', KEYS[5], ARGV[3] .. '\\0' .. ARGV[4]) and 0 or 1", "return (ARGV[1] ~= 'follow' or redis.call('ZSCORE', KEYS[1], ARGV[3])) and 1 or 0"),
];
