//! What a script does on the server is bounded, whatever is in its keys: every script of every family, on keys that are filled
//! to the limits of their pattern or beyond.
//!
//! The tables in `work/` have a row for each script: `-- [name] at most 600`, then Lua that fills the keys and returns KEYS
//! and ARGV of the call that is counted. Work is counted in commands and elements, not in time; see `work/count.lua`.
//! About 1,000 of them take half a millisecond. Another test runs the same rows on a server, and shows the time that it says
//! they took.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use redstart::Store;
use redstart_testkit::{Kind, Server, figure, scale};

const PRELUDE: &str = include_str!("work/prelude.lua");
const COUNT: &str = include_str!("work/count.lua");
const TABLES: &[&str] = &[
    include_str!("work/caching.lua"),
    include_str!("work/commerce.lua"),
    include_str!("work/counting.lua"),
    include_str!("work/limiting.lua"),
    include_str!("work/location.lua"),
    include_str!("work/locking.lua"),
    include_str!("work/membership.lua"),
    include_str!("work/messaging.lua"),
    include_str!("work/queue.lua"),
    include_str!("work/ranking.lua"),
    include_str!("work/resilience.lua"),
    include_str!("work/sessions.lua"),
    include_str!("work/social.lua"),
    include_str!("work/storage.lua"),
];

/// The work that a script may do if its row does not say otherwise. A script that visits all elements of a key does many
/// times that.
const MOST: u64 = 500;

struct Row {
    script: &'static str,
    most: u64,
    lua: &'static str,
}

fn rows() -> anyhow::Result<Vec<Row>> {
    let parts = TABLES.iter().flat_map(|table| table.split("-- [").skip(1));
    parts
        .map(|part| {
            let (head, lua) = part.split_once('\n').context("a row is not complete")?;
            let (script, head) = head.split_once(']').context("a row has no name")?;
            let words: Vec<&str> = head.split_whitespace().collect();
            let most = match words[..] {
                ["at", "most", most, ..] => most.trim_end_matches([':', '.', ',']).parse()?,
                _ => MOST,
            };
            Ok(Row { script, most, lua })
        })
        .collect()
}

/// Patterns whose pages say that they may take longer than a millisecond, and what that depends on: see
/// `redstart::script`.
const EXCEPTIONS: &[&str] = &[
    "sorted_view.",
    "windowed.",
    "activity.",
    "uniques.",
    "places.",
    "bloom.",
    "stream.",
    "reliable_list.",
    "ring.",
    // By the concurrency of a worker.
    "queue.leave",
    "queue.reclaim",
    "queue.reconcile",
    "queue.renew",
    "queue.reserve",
];

/// The Lua that fills the keys of a row and returns KEYS and ARGV.
fn filling(fill: &str) -> String {
    format!(
        "{PRELUDE}
        local function fill()
        {fill}
        end
        local keys, args = fill()
        local words = {{}}
        for i, arg in ipairs(args) do words[i] = type(arg) == 'number' and arg % 1 == 0 and text(arg) or tostring(arg) end
        return {{ keys, words }}"
    )
}

/// How much work a script does after `fill` has prepared its keys and arguments.
async fn count(fill: &str, source: &str) -> anyhow::Result<u64> {
    // One for each: nothing is left of the row before.
    let store = Store::builder("memory://")
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let (keys, args): (Vec<Vec<u8>>, Vec<Vec<u8>>) = store
        .query(redis::cmd("EVAL").arg(filling(fill)).arg(0))
        .await
        .context("its keys cannot be filled")?;
    let counted = format!(
        "{COUNT}
        local function body()
        {source}
        end
        local reply = body()
        if type(reply) == 'table' and reply.err then return reply end
        return work"
    );
    let mut eval = redis::cmd("EVAL");
    eval.arg(counted).arg(keys.len()).arg(keys).arg(args);
    store.query(&eval).await.context("it fails")
}

#[tokio::test]
async fn no_script_does_more_than_a_bounded_amount_of_work_however_full_its_keys_are()
-> anyhow::Result<()> {
    let scripts = redstart::script::all();
    let rows = rows()?;
    let known: BTreeSet<&str> = scripts.iter().map(|script| script.name()).collect();
    let listed: BTreeSet<&str> = rows.iter().map(|row| row.script).collect();
    let without: Vec<_> = known.difference(&listed).collect();
    ensure!(without.is_empty(), "scripts without a row: {without:?}");
    let unknown: Vec<_> = listed.difference(&known).collect();
    ensure!(unknown.is_empty(), "rows without a script: {unknown:?}");
    let mut beyond = Vec::new();
    for row in &rows {
        for script in scripts.iter().filter(|script| script.name() == row.script) {
            let work = count(row.lua, script.source())
                .await
                .with_context(|| row.script.to_owned())?;
            if work > row.most {
                beyond.push(format!("{}: {work}, not {}", row.script, row.most));
            }
            // A bound that is far away would let a change through that makes a script slow.
            if row.most > MOST && work * 2 < row.most {
                beyond.push(format!("{}: {work}, much below {}", row.script, row.most));
            }
        }
    }
    ensure!(beyond.is_empty(), "{beyond:#?}");
    figure(format!("{} scripts, {} rows", scripts.len(), rows.len()));
    Ok(())
}

/// How many microseconds a server says that a script took, after `fill` has prepared its keys and arguments; `None` if the
/// server does not have its commands.
async fn time(store: &Store, fill: &str, source: &str) -> anyhow::Result<Option<u64>> {
    store.query::<()>(&redis::cmd("FLUSHALL")).await?;
    let filled = store
        .query(redis::cmd("EVAL").arg(filling(fill)).arg(0))
        .await;
    let (keys, args): (Vec<Vec<u8>>, Vec<Vec<u8>>) = match filled {
        Err(error) if error.to_string().contains("Unknown Redis command") => return Ok(None),
        filled => filled.context("its keys cannot be filled")?,
    };
    let load = redis::cmd("SCRIPT").arg("LOAD").arg(source).to_owned();
    let digest: String = store.query(&load).await?;
    store
        .query::<()>(redis::cmd("SLOWLOG").arg("RESET"))
        .await?;
    let mut run = redis::cmd("EVALSHA");
    run.arg(&digest).arg(keys.len()).arg(keys).arg(args);
    match store.query::<redis::Value>(&run).await {
        Err(error) if error.to_string().contains("Unknown Redis command") => return Ok(None),
        done => done.context("it fails")?,
    };
    // Entries: number, when, microseconds, the words of the command, and more.
    let entries: Vec<Vec<redis::Value>> = store
        .query(redis::cmd("SLOWLOG").arg("GET").arg(-1))
        .await?;
    for entry in entries {
        let words: Vec<Vec<u8>> = redis::from_redis_value(entry[3].clone())?;
        if words.get(1).is_some_and(|word| word == digest.as_bytes()) {
            return Ok(Some(redis::from_redis_value(entry[2].clone())?));
        }
    }
    anyhow::bail!("the server did not log it")
}

/// With many rounds, the least that each row took must be below a millisecond, but for the exceptions. A single run says more
/// of the machine than of the script.
#[tokio::test]
async fn the_time_that_each_script_takes_on_a_server_is_shown() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis)
        .config("slowlog-log-slower-than", "0")
        .config("slowlog-max-len", "100000")
        .start()
        .await?;
    let store = Store::builder(&server.url())
        .deadline(Duration::from_secs(60))
        .connect()
        .await?;
    let rounds = scale(1, "rounds of each script");
    let (scripts, rows) = (redstart::script::all(), rows()?);
    let mut least: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &rows {
        let script = scripts
            .iter()
            .find(|script| script.name() == row.script)
            .context("a row without a script")?;
        let mut of_row = None;
        for _ in 0..rounds {
            let took = time(&store, row.lua, script.source())
                .await
                .with_context(|| row.script.to_owned())?;
            of_row = of_row.into_iter().chain(took).min();
        }
        let of_script = least.entry(row.script).or_default();
        *of_script = (*of_script).max(of_row.unwrap_or(0));
    }
    let mut by_time: Vec<(u64, &str)> = least
        .into_iter()
        .map(|(name, micros)| (micros, name))
        .collect();
    by_time.sort_unstable_by(|one, other| other.cmp(one));
    for (micros, name) in by_time.iter().take(20) {
        figure(format!("{name}: {micros} µs, the least of {rounds}"));
    }
    let is_exception = |name: &str| {
        EXCEPTIONS
            .iter()
            .any(|exception| name.starts_with(exception))
    };
    let beyond: Vec<_> = by_time
        .iter()
        .filter(|(micros, name)| *micros > 1000 && !is_exception(name))
        .collect();
    ensure!(
        rounds < 20 || beyond.is_empty(),
        "longer than a millisecond: {beyond:?}"
    );
    Ok(())
}

/// The test above that counts is worth as much as its counting: whatever visits all elements of a key is seen.
#[tokio::test]
async fn work_that_grows_with_a_key_is_counted() -> anyhow::Result<()> {
    let rows = [
        ("lfill('k')", "return redis.call('LRANGE', KEYS[1], 0, -1)"),
        ("lfill('k')", "return redis.call('LREM', KEYS[1], 0, 'x')"),
        ("lfill('k')", "return redis.call('LTRIM', KEYS[1], 1, 0)"),
        ("lfill('k')", "return redis.call('DEL', KEYS[1])"),
        ("hfill('k', 1)", "return redis.call('HGETALL', KEYS[1])"),
        (
            "hfill('k', 1)",
            "for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HDEL', KEYS[1], f) end",
        ),
        ("sfill('k')", "return redis.call('SMEMBERS', KEYS[1])"),
        (
            "zfill('k', 1)",
            "return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '+inf')",
        ),
        (
            "zfill('k', 1)",
            "return redis.call('ZRANGE', KEYS[1], 0, -1)",
        ),
        (
            "zfill('k', 1)",
            "return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 2900, 1)",
        ),
        (
            "xfill('k')",
            "return redis.call('XRANGE', KEYS[1], '-', '+')",
        ),
        (
            "xfill('k')",
            "return redis.call('XTRIM', KEYS[1], 'MAXLEN', 0)",
        ),
        (
            "lfill('k', function(i) return i end)",
            "return #redis.call('SORT', KEYS[1])",
        ),
    ];
    for (fill, source) in rows {
        let work = count(&format!("{fill} return {{ 'k' }}, {{}}"), source).await?;
        ensure!(work > 2 * MOST, "{source}: {work}");
    }
    let work = count(
        "zfill('k', 1) return { 'k' }, {}",
        "return redis.call('ZCARD', KEYS[1])",
    );
    ensure!(work.await? < 10);
    Ok(())
}
