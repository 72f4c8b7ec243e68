//! Makes the table of costs on a real server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{Store, redis};
use tokio::task::JoinSet;

use super::{
    cost::{EntityCost, PatternCost, Point, ServerCosts},
    fill::{Fill, Filling, fillings},
};
use crate::{
    Length, Live, Pace, Pattern, Settings,
    address::{is_found_by_asking, is_this_machine},
    elsewhere,
    error::{Error, Result},
    report::{build, today},
    run::{namespace, run_on},
    server::{Servers, version},
};

/// Callers that fill a store at a time, and those of more than a hundred thousand entities, whose requests share more writes.
const CALLERS: u64 = 32;
const MANY_CALLERS: u64 = 256;

/// Measures what every pattern costs on a server, which must be empty and on this machine: it is flushed between the
/// measurements, because the tables that a server keeps do not shrink at once. `each` is how long each pattern is put under
/// load; `only` names what is measured, everything if it is empty; `note` hears what is being done.
///
/// # Errors
///
/// If the server has keys, in any of its databases, is not this machine, or is named by sentinels or part of a Cluster, and
/// those of the store.
///
/// # Cancel safety
///
/// If the future is dropped, keys of the measurement stay.
pub async fn measure(
    url: &str,
    each: Duration,
    only: &[String],
    note: impl Fn(&str),
) -> Result<ServerCosts> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    // What a server costs is not to be divided by nodes, and what is flushed must be what the URL names.
    if is_found_by_asking(url) {
        return Err(Error::config(
            "costs are measured on one server, by its own address: not by sentinels, and not on a Cluster",
        ));
    }
    if let Some(other) = elsewhere(url).await? {
        return Err(not_here(&other));
    }
    let store = Store::connect(url).await?;
    may_be_flushed(&store).await?;
    let mut costs = ServerCosts {
        server: version(&store).await,
        redstart: env!("CARGO_PKG_VERSION").to_owned(),
        measured: today(),
        machine: format!(
            "{} {}, {} cores",
            std::env::consts::OS,
            std::env::consts::ARCH,
            std::thread::available_parallelism().map_or(1, usize::from)
        ),
        build: build(),
        load: load(),
        patterns: Vec::new(),
        entities: Vec::new(),
    };
    for filling in fillings().iter().filter(|filling| wanted(filling.kind())) {
        let mut points = Vec::new();
        for value in filling.values() {
            note(&format!("{} at {value}", filling.kind()));
            points.push(weigh(&store, filling, *value).await?);
        }
        costs.entities.push(EntityCost {
            kind: filling.kind().to_owned(),
            entity: filling.entity().to_owned(),
            parameter: filling.parameter().map(str::to_owned),
            points,
        });
    }
    for pattern in crate::all().filter(|pattern| wanted(pattern.name())) {
        note(pattern.name());
        costs
            .patterns
            .push(measure_cost(&store, pattern, each).await?);
    }
    Ok(costs)
}

/// Runs of which the median is taken: one of them may meet something else that the machine does.
const RUNS: usize = 3;

/// What an operation of a pattern costs: the pattern is put under load three times, as for the table, and the run with the
/// median CPU counts. The store must be empty and is flushed after each run.
///
/// # Errors
///
/// If the store has keys, in any of its databases, is not this machine or is a Cluster, those of the store, and if the pattern
/// did not hold.
///
/// # Cancel safety
///
/// As [`run`](crate::run).
pub async fn measure_cost(store: &Store, pattern: &Pattern, each: Duration) -> Result<PatternCost> {
    may_be_flushed(store).await?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(cost_of_a_run(store, pattern, each).await?);
        flush(store).await?;
    }
    Ok(median(runs))
}

/// The run with the median CPU of an odd number of them.
fn median(mut runs: Vec<PatternCost>) -> PatternCost {
    runs.sort_by(|a, b| a.server_us_per_op.total_cmp(&b.server_us_per_op));
    let middle = runs.len() / 2;
    runs.swap_remove(middle)
}

fn not_here(address: &str) -> Error {
    Error::config(format!(
        "{address} is not this machine: costs are measured on a server of this machine, which is flushed meanwhile"
    ))
}

/// Whether nobody misses what is flushed. Keys of another database are somebody's too: DBSIZE does not count them.
async fn may_be_flushed(store: &Store) -> Result<()> {
    if store.is_cluster() {
        return Err(Error::config("costs are measured on one server"));
    }
    let addresses = store.addresses().await?;
    if let Some(other) = addresses.iter().find(|address| !is_this_machine(address)) {
        return Err(not_here(other));
    }
    let mut info = redis::cmd("INFO");
    info.arg("keyspace");
    let text: String = store.query(&info).await?;
    let databases = text.lines().filter(|line| line.starts_with("db"));
    let databases: Vec<&str> = databases
        .map(|line| line.split(',').next().unwrap_or(line))
        .collect();
    match databases.is_empty() {
        true => Ok(()),
        false => Err(Error::config(format!(
            "the server has keys ({}): costs are measured on an empty one, which is flushed meanwhile",
            databases.join(", ").replace(":keys=", ": ")
        ))),
    }
}

async fn cost_of_a_run(store: &Store, pattern: &Pattern, each: Duration) -> Result<PatternCost> {
    let settings = Settings {
        pace: Pace::Closed { clients: 32 },
        length: Length::Time(each),
        keys: 1000,
        max_memory: 1 << 30,
        ..Settings::default()
    };
    let live = Arc::new(Live::new());
    let report = run_on(store, &namespace(), pattern, &settings, &live).await?;
    if !report.held {
        let broken = report.broken.or(report.unchecked).unwrap_or_default();
        return Err(Error::config(format!(
            "{} did not hold while it was measured: {broken}",
            report.pattern
        )));
    }
    Ok(PatternCost {
        pattern: report.pattern,
        server_us_per_op: round(report.server_us_per_op.unwrap_or(0.0)),
        round_trips_per_op: report.round_trips_per_op.map(round),
        network_bytes_per_op: report.network_bytes_per_op.map(round),
        messages_per_op: report.messages_per_op.map(round),
        writes: report.writes,
    })
}

/// The load average of the last minute.
fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Two decimals are more than a measurement is worth.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Only the database of the measurement: another program may have begun to use another one meanwhile.
async fn flush(store: &Store) -> Result<()> {
    let mut flush = redis::cmd("FLUSHDB");
    flush.arg("SYNC");
    Ok(store.query(&flush).await?)
}

async fn weigh(store: &Store, filling: &Filling, value: u64) -> Result<Point> {
    flush(store).await?;
    let entities = filling.count(value);
    let bytes = measure_fill(store, &namespace(), filling, value, entities).await?;
    flush(store).await?;
    Ok(Point {
        at: value as f64,
        bytes: round(bytes),
        entities,
    })
}

/// Fills a store with entities, and returns what one of them takes. The keys stay, and an embedded engine keeps a limit of a
/// terabyte, with which it counts its memory exactly.
///
/// # Errors
///
/// Those of the store, and if it does not tell its memory.
///
/// # Cancel safety
///
/// If the future is dropped, a part of the entities is there.
pub async fn measure_fill(
    store: &Store,
    namespace: &str,
    filling: &Filling,
    value: u64,
    entities: u64,
) -> Result<f64> {
    let servers = Servers::open(store).await?;
    if store.is_embedded() {
        // Without a limit the engine judges its memory by a few keys, which are no sample if keys differ.
        let mut limit = redis::cmd("CONFIG");
        limit.arg("SET").arg("maxmemory").arg("1024gb");
        store.query::<()>(&limit).await?;
    }
    // Scripts, connections and their buffers are no part of an entity.
    let warm = format!("{namespace}-warm");
    fill(&filling.open(store, &warm, value).await?, CALLERS).await?;
    crate::sweep(store, &warm).await?;
    let entity = filling.open(store, namespace, value).await?;
    let before = still(&servers).await;
    fill(&entity, entities).await?;
    store.settle().await;
    let after = still(&servers).await;
    let (Some(before), Some(after)) = (before, after) else {
        return Err(Error::config("the server does not tell its memory"));
    };
    Ok(after.saturating_sub(before) as f64 / entities as f64)
}

/// The memory in use once it no longer changes.
async fn still(servers: &Servers) -> Option<u64> {
    let (mut last, _) = servers.data_memory().await?;
    let mut same = 0;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (now, pending) = servers.data_memory().await?;
        // What the server needs for itself comes and goes.
        same = match pending == 0 && now.abs_diff(last) < 4096 {
            true => same + 1,
            false => 0,
        };
        last = now;
        if same == 4 {
            break;
        }
    }
    Some(last)
}

/// Puts entities, by several callers at a time.
async fn fill(entity: &Fill, entities: u64) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    let callers_at_a_time = match entities {
        0..100_000 => CALLERS.min(entities),
        _ => MANY_CALLERS,
    };
    for _ in 0..callers_at_a_time {
        let (put, next) = (entity.put.clone(), next.clone());
        callers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= entities {
                    return Ok::<_, redstart::Error>(());
                }
                put(n).await?;
                if n % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        match ended {
            Ok(filled) => filled?,
            Err(error) => return Err(Error::config(format!("a caller ended: {error}"))),
        }
    }
    Ok((entity.end)(entities).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_of_three_may_be_an_outlier() {
        let cost = |us: f64| PatternCost {
            pattern: "mutex".to_owned(),
            server_us_per_op: us,
            round_trips_per_op: None,
            network_bytes_per_op: None,
            messages_per_op: None,
            writes: 1.0,
        };
        for runs in [[9.0, 10.0, 90.0], [90.0, 9.0, 10.0], [10.0, 90.0, 1.0]] {
            let found = median(runs.map(cost).to_vec());
            assert_eq!(found.server_us_per_op, 10.0, "{runs:?}");
        }
    }
}
