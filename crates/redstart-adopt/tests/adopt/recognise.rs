//! Recognition, on servers that the libraries themselves have written to.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use redis::cmd;
use redstart::Store;
use redstart_adopt::{Budget, Library, Recognition, recognise};
use redstart_testkit::{Foreign, Kind, Language, MonitorTap, Server};

use crate::{library, served};

/// What the libraries cannot be run for: each command as the library sends it.
const RECORDED: &str = include_str!("../libraries/recorded.txt");

/// Every library writes to the server at this port.
pub(crate) async fn fill(port: u16, store: &Store) -> Result<()> {
    let port = port.to_string();
    let args = [port.as_str()];
    let scripts = ["specimens.js", "specimens.py", "specimens.rb"].map(library);
    let (node, python, ruby) = tokio::join!(
        Foreign::run(Language::Node, &scripts[0], &args),
        Foreign::run(Language::Python, &scripts[1], &args),
        Foreign::run(Language::Ruby, &scripts[2], &args),
    );
    node?;
    python?;
    ruby?;
    record(store, RECORDED).await?;
    let cache =
        redstart::caching::Cache::<str, String>::builder(store, "shop", "product").build()?;
    for product in ["1", "2"] {
        let load = |_| async { Ok::<_, std::convert::Infallible>(Some("tea".to_owned())) };
        cache.get_or_load(product, load).await?;
    }
    let orders = redstart::messaging::ReliableList::new(store, "shop", "orders")?;
    orders.push("order 5001").await?;
    let feeds = redstart::messaging::Ring::new(store, "shop", "feeds")?;
    feeds.add("a").await?;
    let calls = redstart::messaging::PriorityQueue::<String>::new(store, "shop", "calls")?;
    calls.push(&"ann".to_owned(), 3).await?;
    Ok(())
}

/// Sends commands that are written down: one per line, words separated by spaces, `\x..` for bytes.
async fn record(store: &Store, commands: &str) -> Result<()> {
    for line in commands.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<Vec<u8>> = line.split(' ').map(unescape).collect();
        let mut command = cmd(std::str::from_utf8(&words[0])?);
        command.arg(&words[1..]);
        let _: redis::Value = store.query(&command).await.context(line.to_owned())?;
    }
    Ok(())
}

fn unescape(word: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend(before.as_bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
        rest = &after[2..];
    }
    bytes.extend(rest.as_bytes());
    bytes
}

/// The surest claim of each library.
fn best(recognition: &Recognition) -> BTreeMap<&'static str, f64> {
    let mut best = BTreeMap::new();
    for found in recognition.found.iter().rev() {
        best.insert(found.library.name(), found.confidence);
    }
    best
}

/// Each subject, and the library that must be named for it.
const EXPECTED: &[(&str, Library)] = &[
    ("bull:mail-five", Library::BullMq),
    ("bull:mail-six", Library::BullMq),
    ("bull:mail-four", Library::Bull),
    ("queue:default", Library::Sidekiq),
    ("queue:critical", Library::Sidekiq),
    ("celery", Library::Celery),
    ("rq:queue:default", Library::Rq),
    ("asynq:{default}", Library::Asynq),
    ("dramatiq:billing", Library::Dramatiq),
    ("lock:order:*", Library::RedisPyLock),
    ("stock:lock:*", Library::Redlock),
    ("payment:lock", Library::Redisson),
    ("login:*", Library::RateLimiterFlexible),
    ("rlflx:*", Library::RateLimiterFlexible),
    ("rl:*", Library::ExpressRateLimit),
    ("LIMITS:LIMITER/api/*/*/*/hour", Library::Limits),
    ("LIMITS:LIMITER/web/*/*/*/hour", Library::Limits),
    ("sess:*", Library::ConnectRedis),
    ("spring:session:sessions:*", Library::SpringSession),
    ("shop:1:*", Library::DjangoCache),
    ("blog:1:*", Library::DjangoCache),
    ("views/products/*", Library::RailsCache),
    ("views/old/*", Library::RailsCache),
    ("shop:*", Library::Redstart),
];

/// What others could have written: named, but not surely.
const WEAK: &[&str] = &["stock:lock:*", "login:*"];

fn all_are_named_and_none_misnamed(recognition: &Recognition) {
    let told: Vec<String> = recognition
        .found
        .iter()
        .map(|one| {
            format!(
                "{:.2} {} {} {:?}",
                one.confidence, one.library, one.subject, one.evidence
            )
        })
        .collect();
    let told = told.join("\n");
    for (subject, library) in EXPECTED {
        let named = recognition
            .found
            .iter()
            .find(|one| one.library == *library && one.subject == *subject);
        let weak = WEAK.contains(subject);
        let named = named.is_some_and(|one| one.confidence > if weak { 0.6 } else { 0.7 });
        assert!(named, "{library} was not named for {subject}:\n{told}");
    }
    for one in recognition.found.iter().filter(|one| one.confidence > 0.5) {
        let expected = (one.subject.as_str(), one.library);
        assert!(
            EXPECTED.contains(&expected),
            "misnamed {expected:?}:\n{told}"
        );
    }
    let version = |subject: &str| {
        let one = recognition.found.iter().find(|one| one.subject == subject);
        one.and_then(|one| one.version.clone())
    };
    assert_eq!(version("bull:mail-five").as_deref(), Some("5.81.5"));
    assert_eq!(version("bull:mail-six").as_deref(), Some("6.7.0"));
    assert_eq!(version("queue:default").as_deref(), Some("<8"));
    assert_eq!(version("rq:queue:default").as_deref(), Some("2.12.0"));
}

fn every_key_has_its_owner(recognition: &Recognition) {
    assert_eq!(
        recognition.unowned,
        [],
        "keys of libraries without an owner"
    );
    for (key, library) in [
        ("bull:mail-five:4", Library::BullMq),
        ("bull:mail-four:wait", Library::Bull),
        ("queues", Library::Sidekiq),
        ("schedule", Library::Sidekiq),
        ("_kombu.binding.celery", Library::Celery),
        ("dramatiq:__heartbeats__", Library::Dramatiq),
        ("shop:1:visits", Library::DjangoCache),
        ("shop:cache.product:{1}", Library::Redstart),
        ("shop:list:{orders}", Library::Redstart),
        ("shop:ring:{feeds}", Library::Redstart),
        ("shop:priority:{calls}", Library::Redstart),
    ] {
        let owner = recognition.owner(key.as_bytes()).map(|one| one.library);
        assert_eq!(owner, Some(library), "{key}");
    }
}

async fn on_a_server(kind: Kind) -> Result<()> {
    let server = Server::builder(kind).start().await?;
    let store = Store::connect(&format!("{}?timeout=10s", server.url())).await?;
    fill(server.port(), &store).await?;

    let tap = MonitorTap::start(&server).await?;
    let recognition = recognise(&store, &Budget::default()).await?;
    all_are_named_and_none_misnamed(&recognition);
    every_key_has_its_owner(&recognition);
    assert!(recognition.complete);

    only_reads(tap, &[]).await
}

/// Every command that arrived is one that changes nothing.
pub(crate) async fn only_reads(tap: MonitorTap<'_>, more: &[&str]) -> Result<()> {
    let allowed = [
        "time",
        "scan",
        "script",
        "type",
        "pttl",
        "strlen",
        "hlen",
        "llen",
        "scard",
        "zcard",
        "xlen",
        "memory",
        "getrange",
        "hkeys",
        "hrandfield",
        "lrange",
        "srandmember",
        "zrange",
        "xrange",
        "exists",
        "hstrlen",
        "hmget",
        "info",
        "command",
        "client",
        "hello",
        "ping",
    ];
    let commands = tap.commands().await?;
    assert!(commands.len() > 20);
    for seen in commands {
        let name = seen.name().to_ascii_lowercase();
        assert!(
            allowed.contains(&name.as_str()) || more.contains(&name.as_str()),
            "{name} was sent"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_library_is_named_and_none_misnamed_on_redis() -> Result<()> {
    on_a_server(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_library_is_named_and_none_misnamed_on_valkey() -> Result<()> {
    on_a_server(Kind::Valkey).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_library_is_named_and_none_misnamed_on_the_engines_listener() -> Result<()> {
    let port = served::open()?;
    let store = Store::connect(&format!("redis://127.0.0.1:{port}?timeout=10s")).await?;
    fill(port, &store).await?;
    let recognition = recognise(&store, &Budget::default()).await?;
    all_are_named_and_none_misnamed(&recognition);
    every_key_has_its_owner(&recognition);
    Ok(())
}

/// Names as the libraries have them, with contents of something else.
const LOOK_ALIKES: &str = include_str!("../libraries/look_alikes.txt");

/// A token as redis-py makes one now, which others make too.
fn recent_uuid(now: Duration) -> String {
    // 100 ns since 15 October 1582.
    let ticks = now.as_nanos() as u64 / 100 + 0x01b2_1dd2_1381_4000;
    let (low, middle, high) = (
        ticks & 0xffff_ffff,
        ticks >> 32 & 0xffff,
        ticks >> 48 & 0xfff,
    );
    format!("{low:08x}{middle:04x}1{high:03x}8f3902fc00000001")
}

async fn not_claimed(store: &Store) -> Result<()> {
    let recognition = recognise(store, &Budget::default()).await?;
    let claimed: Vec<String> = recognition
        .found
        .iter()
        .filter(|found| found.confidence > 0.7)
        .map(|found| {
            format!(
                "{} claims {} with {}",
                found.library, found.subject, found.confidence
            )
        })
        .collect();
    assert!(claimed.is_empty(), "{}", claimed.join("\n"));
    assert!(recognition.sampled > 30);
    Ok(())
}

async fn look_alikes(port: u16) -> Result<()> {
    let store = Store::connect(&format!("redis://127.0.0.1:{port}?timeout=10s")).await?;
    record(&store, LOOK_ALIKES).await?;
    let token = recent_uuid(store.time().await?);
    let _: () = store.query(cmd("SET").arg("trace:17").arg(&token)).await?;
    not_claimed(&store).await?;

    // The same with the scripts of the libraries on the server: the libraries are used there, on other keys that are gone.
    let port = port.to_string();
    let scripts = ["specimens.js", "specimens.py"].map(library);
    let _: () = store.query(&cmd("FLUSHALL")).await?;
    Foreign::run(Language::Node, &scripts[0], &[&port]).await?;
    Foreign::run(Language::Python, &scripts[1], &[&port]).await?;
    let _: () = store.query(&cmd("FLUSHALL")).await?;
    let (with_scripts, _) = LOOK_ALIKES
        .split_once("# Without the scripts")
        .context("the second part")?;
    record(&store, with_scripts).await?;
    let _: () = store.query(cmd("SET").arg("trace:17").arg(&token)).await?;
    not_claimed(&store).await
}

mod look_alikes_are_not_claimed {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn redis() -> Result<()> {
        let server = Server::builder(Kind::Redis).start().await?;
        look_alikes(server.port()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn valkey() -> Result<()> {
        let server = Server::builder(Kind::Valkey).start().await?;
        look_alikes(server.port()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn engine() -> Result<()> {
        look_alikes(served::open()?).await
    }
}

/// A queue among many other keys is found by its jobs, although its index keys are not in the sample.
#[tokio::test]
async fn a_queue_is_found_through_one_of_its_jobs() -> Result<()> {
    let store = Store::connect("memory://").await?;
    for id in 0..400 {
        let mut job = cmd("HSET");
        job.arg(format!("bull:mail:{id}")).arg(&[
            "name",
            "welcome",
            "data",
            "{}",
            "opts",
            "{\"attempts\":0}",
            "timestamp",
            "1794784761931",
            "delay",
            "0",
            "priority",
            "0",
        ]);
        let _: () = store.query(&job).await?;
    }
    record(
        &store,
        "HSET bull:mail:meta version bullmq:5.81.5 opts.maxLenEvents 10000",
    )
    .await?;
    let budget = Budget::default().keys(20).looks(40);
    let recognition = recognise(&store, &budget).await?;
    assert_eq!(best(&recognition).get("bullmq"), Some(&0.99));
    assert!(!recognition.complete);
    Ok(())
}

/// Large values are not read: what is sent back stays small.
#[tokio::test(flavor = "multi_thread")]
async fn large_values_are_not_read() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=10s", server.url())).await?;
    let large = vec![b'x'; 4 << 20];
    for (command, key) in [("SET", "a"), ("RPUSH", "b"), ("SADD", "c")] {
        let _: () = store.query(cmd(command).arg(key).arg(&large)).await?;
    }
    let _: () = store.query(cmd("ZADD").arg("d").arg(1).arg(&large)).await?;
    let _: () = store
        .query(cmd("HSET").arg("e").arg("f").arg(&large))
        .await?;
    let _: () = store
        .query(cmd("XADD").arg("g").arg("*").arg("f").arg(&large))
        .await?;
    let before: u64 = server.info("total_net_output_bytes").await?.parse()?;
    recognise(&store, &Budget::default()).await?;
    let after: u64 = server.info("total_net_output_bytes").await?.parse()?;
    assert!(
        after - before < 64 << 10,
        "{} bytes were read",
        after - before
    );
    Ok(())
}

/// On a Cluster every master is sampled, and looks go to the owners of the keys.
#[tokio::test(flavor = "multi_thread")]
async fn libraries_on_a_cluster_are_named() -> Result<()> {
    let url = redstart_testkit::shared_cluster().await?.url().to_owned();
    let store = Store::connect(&format!("{url}?timeout=10s")).await?;
    let name = redstart_testkit::unique_namespace("recognise");
    for shard in 0..6 {
        let base = format!("{{{name}-{shard}}}:mail");
        record(&store, &format!("HSET {base}:meta version bullmq:6.7.0")).await?;
    }
    let budget = Budget::default().matching(&format!("*{name}*"));
    let recognition = recognise(&store, &budget).await?;
    let subjects = recognition.of(Library::BullMq).count();
    assert_eq!(subjects, 6, "{:?}", recognition.found);
    Ok(())
}

/// A library among very many other keys is found if its keys are named, and what was seen is told.
#[tokio::test]
async fn a_rare_library_is_found_by_the_names_of_its_keys() -> Result<()> {
    let store = Store::connect("memory://").await?;
    for first in (0..100_000).step_by(1000) {
        let mut fill = cmd("MSET");
        for n in first..first + 1000 {
            fill.arg(format!("other:{n}")).arg(1);
        }
        let () = store.query(&fill).await?;
    }
    record(&store, "HSET bull:mail:meta version bullmq:6.7.0").await?;
    let budget = Budget::default().keys(500).matching("bull:*");
    let recognition = recognise(&store, &budget).await?;
    assert_eq!(best(&recognition).get("bullmq"), Some(&0.99));
    assert!(recognition.complete);
    let some = recognise(&store, &Budget::default().keys(500).matching("other:*")).await?;
    assert!(!some.complete && some.sampled == 500, "{}", some.sampled);
    // Nor is it complete if there were fewer looks than keys to look at.
    record(&store, "SET bull:mail:id 1").await?;
    let budget = Budget::default().keys(500).looks(2).matching("bull:*");
    assert!(!recognise(&store, &budget).await?.complete);
    // Without time for it, it is not said that all keys were seen.
    let hasty = Budget::default().matching("bull:*").time(Duration::ZERO);
    assert!(!recognise(&store, &hasty).await?.complete);
    Ok(())
}

/// Names of fields can be as large as values.
#[tokio::test(flavor = "multi_thread")]
async fn large_names_of_fields_are_not_read() -> Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = Store::connect(&format!("{}?timeout=10s", server.url())).await?;
    let large = vec![b'x'; 4 << 20];
    for n in 0..3 {
        let mut set = cmd("HSET");
        set.arg(format!("h:{n}")).arg(&large).arg("v");
        let _: u64 = store.query(set.arg("a").arg("b")).await?;
    }
    // A job with much data is still known by its fields.
    let job =
        "HSET bull:mail:1 name welcome data [] opts {} timestamp 1794784761931 delay 0 priority 0";
    record(&store, job).await?;
    let _: u64 = store
        .query(cmd("HSET").arg("bull:mail:1").arg("data").arg(&large))
        .await?;
    record(&store, "HSET bull:mail:meta version bullmq:6.7.0").await?;
    let before: u64 = server.info("total_net_output_bytes").await?.parse()?;
    let recognition = recognise(&store, &Budget::default()).await?;
    let after: u64 = server.info("total_net_output_bytes").await?.parse()?;
    assert!(
        after - before < 64 << 10,
        "{} bytes were read",
        after - before
    );
    let queue = recognition
        .of(Library::BullMq)
        .next()
        .context("the queue")?;
    assert_eq!(queue.subject, "bull:mail");
    Ok(())
}
