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
    switch("no look at the map after time-outs", Store, "the map is read after a time-out"),
    script("a release without owner", Mutex, "mutex.release", "if holder == ARGV[1] then", "if holder then"),
    script("a lock that is granted twice", Mutex, "mutex.acquire", "'NX', ", ""),
    script("a fence that only counts", Mutex, "mutex.acquire", "local time = now()", "local time = 1"),
    script("a lock without an end", Mutex, "mutex.acquire", "'NX', 'PX', ARGV[2]", "'NX'"),
    script("a fence that trusts the clock alone", Mutex, "mutex.acquire", "if last and last >= time then", "if false then"),
    script("a release that does nothing", Mutex, "mutex.release", "return redis.call('DEL', KEYS[1])", "return 1"),
    switch("a lease that is renewed after its end", Mutex, "a lease that has ended stays so"),
    script("a window that ignores the cost", Limiter, "sliding_window.check", "local over = used + cost - limit", "local over = used + 1 - limit"),
    script("a bucket that forgets its debt", Limiter, "token_bucket.check_exact", "local after = debt + cost", "local after = tonumber(cost)"),
    script("a fixed window that forgets its count", Limiter, "fixed_window.check", "used + cost, ends)", "cost, ends)"),
    script("a log without an end", Limiter, "sliding_window.check", "redis.call('PEXPIRE', key, math.ceil(window / 1000) + 1)", ""),
    script("a refund that gives back too much", Limiter, "token_bucket.refund", "math.min(tonumber(ARGV[1]), debt - behind)", "debt"),
    script("a reservation without replay", Stock, "stock.reserve", "if found then", "if false then"),
    script("an expired hold whose units are lost", Stock, "stock.reserve", "redis.call('HINCRBY', KEYS[1], 'free', found.qty)", ""),
    script("a sale without a cap", Stock, "stock.reserve", "if capped then return", "if false then return"),
    script("a hold that is confirmed after its end", Stock, "stock.settle", "if found.state == 'h' and found.expires <= at then", "if false then"),
    script("a confirmation after a cancel", Stock, "stock.settle", "if found.state ~= (ARGV[2] == 'r' and 's' or 'h') then", "if false then"),
    script("unknown work that is taken for free", Idempotency, "idempotency.begin", "if ARGV[5] ~= '1' then return { 'unknown' } end", ""),
    script("a release that frees a finished key", Idempotency, "idempotency.release", "if found[1] == ARGV[1] and not found[2] then", "if found[1] then"),
    script("an answer that is not replayed", Idempotency, "idempotency.begin", "if result then return { 'replay', result } end", ""),
    switch("a claim that is freed by a drop", Idempotency, "a drop frees no claim"),
    script("jobs of a dead worker that are dropped", Queue, "queue.reclaim", "make_ready('LPUSH', back)", ""),
    script("a cancelled take whose jobs are dropped", Queue, "queue.reconcile", "make_ready('LPUSH', back)", ""),
    script("a leaving worker that drops its jobs", Queue, "queue.leave", "make_ready('LPUSH', back)", ""),
    script("a silent worker that is never noticed", Queue, "queue.reclaim", "tonumber(until_us) > now", "true"),
    script("a heartbeat that does not count", Queue, "queue.renew", "redis.call('ZADD', KEYS[2], format('%.0f', now() + ARGV[2]), ARGV[1])", ""),
    script("a delay that is left out", Queue, "queue.enqueue", "delay = tonumber(ARGV[7])", "delay = 0"),
    switch("a job that begins after its lease has ended", Queue, "a late job does not begin"),
    switch("a tick that is lost while workers are busy", Cron, "ticks do not wait for a free slot"),
    script("a tick that every worker enqueues", Cron, "queue.cron_fire", "if not current or format('%.0f', tonumber(current)) ~= ARGV[7] then return 0 end", ""),
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
];
