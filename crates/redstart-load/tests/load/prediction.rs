//! What the table of costs predicts is what real fills take, and what operations cost.

use std::time::Duration;

use redstart::{Store, redis};
use redstart_load::{
    capacity::{CostTable, Filling, Spreading, character, fillings, measure_cost, measure_fill},
    namespace,
};
use redstart_testkit::{Kind, Server, figure, scale};

/// A server of the table; none for the engine of this process.
struct Measured(Option<Server>);

impl Measured {
    async fn start(name: &str) -> anyhow::Result<Self> {
        let kind = match name {
            "redis" => Some(Kind::Redis),
            "valkey" => Some(Kind::Valkey),
            _ => None,
        };
        let server = match kind {
            Some(kind) => Some(Server::builder(kind).start().await?),
            None => None,
        };
        Ok(Self(server))
    }

    /// A store without keys.
    async fn empty(&self) -> anyhow::Result<Store> {
        let Some(server) = &self.0 else {
            return Ok(Store::connect("memory://").await?);
        };
        let store = Store::connect(&format!("{}?timeout=30s", server.url())).await?;
        let mut flush = redis::cmd("FLUSHALL");
        store.query::<()>(flush.arg("SYNC")).await?;
        Ok(store)
    }
}

/// As many entities as take half a megabyte by the prediction. Tables of servers have powers of two as sizes: these numbers fill
/// them by three quarters, as in the measurement.
fn few(bytes: f64) -> u64 {
    let wanted = 1024.0 * scale(512, "fill kibibytes") as f64 / bytes;
    let power = (wanted / 1.5).max(4.0).log2().round();
    (1.5 * power.exp2()) as u64
}

/// Whether a few would not be enough: tables of the engine are looser while they have a few thousand members, and of sketches with a
/// thousand visitors some are dense already.
fn needs_many(server: &str, kind: &str, bytes: f64) -> bool {
    let spreads = character(kind).map(|character| character.spreading);
    let one_table = spreads.is_some_and(|spreading| spreading != Spreading::ByEntity);
    server == "embedded" && one_table && bytes < 600.0
        || kind == "unique_visitors" && bytes < 5000.0
}

/// How many plain requests one entity of a kind is worth, in time.
fn requests(kind: &str, value: u64) -> u64 {
    match kind {
        "unique_visitors" | "visitor_set" => (value / 20).max(1),
        "sliding_window" => value,
        "sorted_view" => value / 10,
        "bloom" => 50,
        // Each has a task or a subscription of its own in this process.
        "leader" | "circuit_breaker" => 100,
        "trail" => 5,
        "dead_letter" => 4,
        "write_behind" | "graph" | "stock" => 2,
        _ => 1,
    }
}

/// How many entities are filled in if so many of a small kind are wanted: no more than fit into a memory, and no more than
/// take as many requests. Of a kind with several sizes the larger ones are a quarter, as in the measurement.
fn many(wanted: u64, filling: &Filling, value: u64, bytes: f64) -> u64 {
    let most = (scale(2048, "fill mebibytes") << 20) as f64;
    let larger = match filling.values().first() {
        Some(first) if *first != value => 4,
        _ => 1,
    };
    let by_requests = wanted / larger / requests(filling.kind(), value);
    (by_requests as f64).min(most / bytes).max(8.0) as u64
}

/// Fills an empty server with each kind of entity at each value of its parameter, and compares with the table. `wanted` is how many
/// of a small kind, if not [few].
async fn memory(name: &str, wanted: u64, kinds: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let measured = Measured::start(name).await?;
    let table = CostTable::built_in()?;
    let costs = table.server(name)?;
    let mut wrong = Vec::new();
    for filling in fillings().iter().filter(|filling| kinds(filling.kind())) {
        let cost = costs.entity(filling.kind()).expect("a measured entity");
        for value in filling.values() {
            let bytes = cost.bytes(*value as f64);
            let entities = match wanted {
                0 => few(bytes),
                wanted => many(wanted, filling, *value, bytes),
            };
            let entities = match needs_many(name, filling.kind(), bytes) {
                true => entities.max(filling.count(*value)),
                false => entities,
            };
            let store = measured.empty().await?;
            let taken = measure_fill(&store, &namespace(), filling, *value, entities).await?;
            let ratio = taken / bytes;
            let line = format!(
                "{name} {} at {value}: {entities} entities, {taken:.0} bytes each, {ratio:.3} of the prediction",
                filling.kind()
            );
            figure(&line);
            if !(0.9..=1.1).contains(&ratio) {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A key per entity, a sorted set, a set and a list.
const LAYOUTS: [&str; 4] = ["counter", "leaderboard", "notification", "ring"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_on_redis_is_predicted_within_a_tenth() -> anyhow::Result<()> {
    memory("redis", scale(0, "fill entities"), |_| true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_on_valkey_is_predicted_within_a_tenth() -> anyhow::Result<()> {
    memory("valkey", scale(0, "fill entities"), |_| true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_the_embedded_engine_is_predicted_within_a_tenth() -> anyhow::Result<()> {
    memory("embedded", scale(0, "fill entities"), |_| true).await
}

/// Ten million in the campaign, of each layout on Redis: the tables and trees of a server are the same for all that have it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_very_many_small_entities_is_predicted_within_a_tenth() -> anyhow::Result<()> {
    let entities = scale(6_144, "small entities");
    for (name, layouts) in [
        ("redis", &LAYOUTS[..]),
        ("valkey", &LAYOUTS[..2]),
        ("embedded", &LAYOUTS[1..2]),
    ] {
        memory(name, entities, |kind| layouts.contains(&kind)).await?;
    }
    Ok(())
}

/// Only as a campaign, in a release: what an operation costs depends on the machine and on how this process was built, so it is
/// compared on the machine on which the table was measured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cpu_is_predicted_within_a_quarter() -> anyhow::Result<()> {
    let each = Duration::from_secs(scale(0, "cpu seconds"));
    if each.is_zero() {
        return Ok(());
    }
    anyhow::ensure!(!cfg!(debug_assertions), "the table is that of a release");
    let table = CostTable::built_in()?;
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for name in ["redis", "valkey", "embedded"] {
        let measured = Measured::start(name).await?;
        let costs = table.server(name)?;
        for pattern in redstart_load::all() {
            let predicted = costs.pattern(pattern.name()).expect("a measured pattern");
            // The median of three runs, as in the table.
            let store = measured.empty().await?;
            let seen = measure_cost(&store, pattern, each).await?;
            let (seen, predicted) = (seen.server_us_per_op, predicted.server_us_per_op);
            let line = format!(
                "{name} {}: {seen:.1} µs per operation, {predicted:.1} predicted",
                pattern.name()
            );
            figure(&line);
            compared += 1;
            // Below a microsecond the clocks of the servers are too coarse.
            if (seen - predicted).abs() > (0.25 * predicted).max(1.0) {
                wrong.push(line);
            }
        }
    }
    figure(format!(
        "{} of {compared} costs are predicted within a quarter",
        compared - wrong.len()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
