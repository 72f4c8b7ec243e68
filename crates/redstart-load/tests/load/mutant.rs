//! A pattern whose script is broken does not hold: each invariant is shown to notice a fault.

use redstart::Store;
use redstart_testkit::{
    Backend, BackendKind,
    child::{must_notice, without},
};

use super::pattern::bench;

/// How a script is broken.
enum Fault {
    /// It is replaced.
    Script(&'static str),
    /// A text of it is replaced by another.
    Text(&'static str, &'static str),
}

use Fault::{Script, Text};

/// Fails unless the pattern held under a short load. With a broken script it fails only if a claim was found to be broken: a run
/// that ends with an error, or whose promise could not be checked, has caught nothing.
async fn holds(kind: BackendKind, pattern: &str) -> anyhow::Result<()> {
    let report = async {
        let backend = Backend::new(kind, "mutant").await?;
        let store = Store::connect(backend.url()).await?;
        bench(&backend, &store, pattern).await
    }
    .await;
    if std::env::var_os("REDSTART_BREAK_SCRIPT").is_some() {
        let broken = report.ok().and_then(|report| report.broken);
        // That the check itself failed is not a finding of it.
        let broken = broken.filter(|broken| !broken.starts_with("could not be checked"));
        anyhow::ensure!(broken.is_none(), "{broken:?}");
        return Ok(());
    }
    let report = report?;
    anyhow::ensure!(report.held, "{:?} {:?}", report.broken, report.unchecked);
    Ok(())
}

/// Fails if the pattern holds although its script is broken.
async fn caught(backend: &str, pattern: &str, script: &str, fault: &Fault) -> anyhow::Result<()> {
    if NOT_RUN.contains(&(backend, script)) {
        return Ok(());
    }
    let test = format!("mutant::{backend}::holds::{pattern}");
    let all = redstart::script::all();
    let source = all.iter().find(|known| known.name() == script);
    let source = source.expect("a script of this name").source();
    match fault {
        Script(lua) => must_notice(&test, script, lua).await,
        Text(check, instead) => must_notice(&test, script, &without(source, check, instead)).await,
    }
}

/// The scripts of each pattern that are broken, and on each backend a test that the pattern holds and one that the fault is
/// caught.
macro_rules! mutants {
    ($($pattern:ident: $($script:literal, $fault:expr);+;)*) => {
        mutants! { @on embedded, Embedded, $($pattern: $($script, $fault);+;)* }
        mutants! { @on redis, Redis, $($pattern: $($script, $fault);+;)* }

        /// The patterns with a broken script.
        const MUTATED: &[&str] = &[$(stringify!($pattern)),*];
    };
    (@on $backend:ident, $kind:ident, $($pattern:ident: $($script:literal, $fault:expr);+;)*) => {
        mod $backend {
            mod holds {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $pattern() -> anyhow::Result<()> {
                        let kind = redstart_testkit::BackendKind::$kind;
                        super::super::holds(kind, stringify!($pattern)).await
                    }
                )*
            }
            mod caught {
                use super::super::*;
                $(
                    #[tokio::test]
                    async fn $pattern() -> anyhow::Result<()> {
                        $(
                            let fault = $fault;
                            super::super::caught(stringify!($backend), stringify!($pattern), $script, &fault).await?;
                        )+
                        Ok(())
                    }
                )*
            }
        }
    };
}

mutants! {
    // What was loaded before an invalidation is stored after it.
    cache_aside: "cache.fill", Text("if redis.call('GET', KEYS[2]) ~= ARGV[1] then", "if false then");
        "cache.invalidate", Script("return 0");
    stampede_lease: "cache.lease", Text("local held = redis.call('GET', KEYS[2])", "local held = false");
    early_refresh: "cache.fill", Text("redis.call('SET', key, entry, 'PX', ARGV[3])", "redis.call('SET', key, entry)");
    negative_cache: "cache.fill", Text("redis.call('SET', key, entry, 'PX', ARGV[3])", "");
    cache_tags: "cache.invalidate_tag", Script("return redis.status_reply('OK')");
    cache_invalidation: "cache.invalidate", Text("redis.call('PUBLISH', ARGV[2], ARGV[3])", "");
    write_through: "cache.settle", Text("if newer(ARGV[5], max) and newer(ARGV[5], stored) then", "if true then");
    write_behind: "write_behind.ack", Text("'MINID', ARGV[1]", "'MAXLEN', 0");
        "write_behind.put", Text("redis.call('SET', KEYS[2], id .. '\\n' .. ARGV[2])", "");
    sorted_view: "sorted_view.drop", Script("return redis.status_reply('OK')");
    fixed_window: "fixed_window.check", Text("used + cost - limit > 0", "used + cost - limit > 1");
    // The window is the hour of half of the subjects; those of the others are a second, and turn.
    sliding_window: "sliding_window.check", Text("local over = used + cost - limit", "local over = used + cost - 2 * limit");
    sliding_counter: "sliding_counter.check", Text("local room = limit - current - cost", "local room = limit - current");
    token_bucket: "token_bucket.check_whole", Script("return 1");
    mutex: "mutex.acquire",
        Script("redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return { 1, redis.call('INCR', KEYS[2]) }");
    fencing: "fenced.write", Text("if fence < highest then", "if false then");
    redlock: "redlock.acquire", Text("return {0, redis.call('PTTL', KEYS[1])}", "redis.call('SET', KEYS[1], ARGV[1])");
    fair_lock: "fair.acquire", Text("if not holder and (not head or head == ARGV[1]) then", "if true then");
    rw_lock: "rw.read", Text("if writer ~= -2 then", "if false then");
    semaphore: "semaphore.acquire", Text(">= tonumber(ARGV[6])", "> tonumber(ARGV[6])");
    leader: "leader.campaign", Text("elseif holder then", "elseif false then");
    legacy_lock: "legacy.acquire", Text("if left >= 0 then", "if false then");
    circuit_breaker: "breaker.report_count", Text("change_to('o')", "");
    stock: "stock.reserve", Text("if free < qty then return { 'soldout', free } end", "");
        "stock.settle", Text("leave(ARGV[1], found, ARGV[2])", "");
    job_queue: "queue.reserve", Text("call('LTRIM', ready, n, -1)", "");
    // One failure is enough to bury a job.
    dead_letter: "queue.finish", Text("    keep_or_free_place(record)\n    if group_waits(record) then record = with_flag(record, 32) end",
        "    if true then free_place(record) return bury(charged(record), text, time) end");
    delayed_jobs: "queue.enqueue", Text("scored(delayed, format('%.0f', now + delay))", "scored(delayed, format('%.0f', now))");
    priority_queue: "priority.push", Text("redis.call('ZADD', KEYS[1], ARGV[2], record)", "redis.call('ZADD', KEYS[1], 0, record)");
    reliable_list: "reliable_list.give_back", Script("return 0");
    ring: "ring.next", Text("redis.call('INCR', KEYS[2])", "");
    notification: "notify.take", Text("'SPOP'", "'SRANDMEMBER'");
    session: "session.patch", Text("redis.call('HSET', KEYS[1], unpack(ARGV, 9, last))", "");
    trail: "trail.visit", Text("redis.call('LTRIM', KEYS[1], -ARGV[1], -1)", "");
    leaderboard: "leaderboard.submit", Text("elseif best and", "elseif false and");
        "leaderboard.rank", Text("'(' .. stored, '+inf') + 1", "stored, '+inf') + 1");
    period_leaderboard: "leaderboard.submit", Text("score = previous + score", "score = previous");
    sharded_leaderboard: "sharded.submit", Text("ARGV[1] == 'high' and 'GT' or 'LT'", "'CH'");
    weighted_choice: "weighted.pick", Text("return number % total", "return 0");
    counter: "counter.ack", Script("return 0");
        "counter.drain", Text("redis.call('SET', KEYS[1], '0', 'KEEPTTL')", "");
    unique_visitors: "uniques.add", Text("unpack(ARGV, i, math.min(i + 999, #ARGV))", "'one'");
    check_ins: "check_ins.mark", Text("ARGV[1], ARGV[2])", "ARGV[1], 0)");
    activity: "activity.mark", Text("'SETBIT', KEYS[1], ARGV[i], 1", "'GETBIT', KEYS[1], ARGV[i]");
    array: "array.set", Script("return redis.status_reply('OK')");
    bloom: "bloom.add", Text("look(layers, true, open, at, to)", "look(layers, false, open, at, to)");
        "bloom.native", Text("redis.call(ARGV[2], KEYS[2],", "redis.call('BF.MEXISTS', KEYS[2],");
    places: "places.put", Text("'GEOADD', KEYS[1],", "'GEOADD', KEYS[1], 'NX',");
    graph: "graph.change", Text("redis.call('ZADD', KEYS[5], at, a)", "");
}

/// Scripts that do not run on a backend: the engine has filters of its own, the server has none.
const NOT_RUN: &[(&str, &str)] = &[("embedded", "bloom.add"), ("redis", "bloom.native")];

/// Patterns whose operations run no script.
const WITHOUT_SCRIPT: &[(&str, &str)] = &[
    ("topic", "a message is one PUBLISH"),
    (
        "event_stream",
        "events are XADD, XREADGROUP and XACK; its scripts claim and trim",
    ),
];

#[test]
fn every_pattern_has_a_broken_script_or_no_script() {
    for pattern in redstart_load::all() {
        let mutated = MUTATED.contains(&pattern.name());
        let exempt = WITHOUT_SCRIPT
            .iter()
            .any(|(name, _)| *name == pattern.name());
        assert!(mutated != exempt, "{}", pattern.name());
    }
    assert_eq!(
        MUTATED.len() + WITHOUT_SCRIPT.len(),
        redstart_load::all().count()
    );
}
