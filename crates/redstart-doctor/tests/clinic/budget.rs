//! What an examination leaves out because it is large: of a Cluster, of libraries, of channels. The report says so.

use std::{collections::BTreeMap, time::Duration};

use redstart::messaging::{Job, Queue};
use redstart_doctor::Report;
use redstart_testkit::{Cluster, Kind, Server, key_slot};

use crate::{client, doctor, examine};

/// The words of a shard and of a third of its slots.
const SHARDS: [&str; 3] = ["east", "west", "north"];
const THIRDS: [&str; 3] = ["low", "middle", "high"];

/// A Cluster with 900 keys in each third of the slots of each shard: `east:low:17`.
async fn filled(kind: Kind) -> anyhow::Result<Cluster> {
    let cluster = Cluster::start(kind, 3, 0).await?;
    let mut batches = [const { Vec::new() }; 3];
    let mut owners = BTreeMap::new();
    let ranges: Vec<Vec<redis::Value>> = cluster.node(0).query(&["CLUSTER", "SLOTS"]).await?;
    for range in ranges {
        let first: u16 = redis::from_redis_value(range[0].clone())?;
        let last: u16 = redis::from_redis_value(range[1].clone())?;
        owners.insert(first, (last, cluster.owner(first).await?));
    }
    for (shard, word) in SHARDS.iter().enumerate() {
        for (third, part) in THIRDS.iter().enumerate() {
            let belongs = |name: &String| {
                let slot = key_slot(name.as_bytes());
                owners
                    .range(..=slot)
                    .next_back()
                    .is_some_and(|(first, (last, owner))| {
                        let within =
                            usize::from(slot - first) * 3 / (usize::from(last - first) + 1);
                        *owner == shard && within == third
                    })
            };
            let names = (0..).map(|i| format!("{word}:{part}:{i}"));
            batches[shard].extend(names.filter(belongs).take(900));
        }
    }
    for (node, names) in cluster.nodes().iter().zip(batches) {
        let mut client = client(&node.url()).await?;
        for names in names.chunks(300) {
            let mut batch = redis::pipe();
            for name in names {
                batch.cmd("SET").arg(name).arg("ann").ignore();
            }
            batch.query_async::<()>(&mut client).await?;
        }
    }
    Ok(cluster)
}

fn seen(report: &Report, of: impl Fn(&str) -> bool) -> u64 {
    let patterns = report.patterns.iter().filter(|one| of(&one.pattern));
    patterns.map(|one| one.seen).sum()
}

/// With more names than the budget has, every shard gives its share, from all of its slots.
async fn random_slots(kind: Kind) -> anyhow::Result<()> {
    let cluster = filled(kind).await?;
    // Fewer than a quarter of the names, and nearly half of them.
    for share in [600, 1200] {
        let report = examine(doctor(&cluster.url()).sampled().names(share * 3)).await?;
        for shard in SHARDS {
            // A name that is met again does not count.
            let of_shard = seen(&report, |pattern| pattern.starts_with(shard));
            assert!(
                (share * 3 / 4..share + 100).contains(&of_shard),
                "{shard}: {:#?}",
                report.patterns
            );
            for third in THIRDS {
                let pattern = format!("{shard}:{third}:*");
                let count = seen(&report, |one| one == pattern);
                assert!(count >= 20, "{pattern}: {:#?}", report.patterns);
            }
        }
        let told = |blind: &redstart_doctor::Blind| blind.why.contains("of 2700 were sampled");
        assert_eq!(report.blinds.iter().filter(|blind| told(blind)).count(), 3);
    }
    Ok(())
}

/// A tenant without TTLs among many that have them is no finding about all of them, although it is the first by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_many_tenants_does_not_speak_for_all() -> anyhow::Result<()> {
    const LUA: &str = "for t = 0, 39 do for i = 1, 30 do \
        local key = 'app:' .. string.char(97 + t % 26) .. string.char(97 + math.floor(t / 26)) .. ':cache:' .. i \
        redis.call('set', key, '{}') if t > 0 then redis.call('expire', key, 600) end end end";
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind).start().await?;
        server.command(&["EVAL", LUA, "0"]).await?;
        let report = examine(doctor(&server.url()).sampled()).await?;
        let pattern = report
            .patterns
            .iter()
            .find(|one| one.pattern == "app:*:cache:*");
        assert!(
            pattern.is_some_and(|one| one.seen == 1200 && one.without_ttl < 0.5),
            "{:#?}",
            report.patterns
        );
        // A few of the keys looked at may be the first tenant's.
        let all = |one: &redstart_doctor::Finding| one.evidence.starts_with("100");
        assert!(!report.sure().any(all), "{:#?}", report.findings);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_of_a_cluster_is_of_random_slots_of_all_shards() -> anyhow::Result<()> {
    random_slots(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_of_a_cluster_of_valkey_is_of_random_slots_of_all_shards() -> anyhow::Result<()> {
    random_slots(Kind::Valkey).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_the_walk_is_shared_by_the_shards() -> anyhow::Result<()> {
    let cluster = filled(Kind::Redis).await?;
    // Less than the first shard alone could use.
    let walk = Duration::from_millis(900);
    let report = examine(doctor(&cluster.url()).sampled().share(1).walk(walk)).await?;
    let walked = |blind: &redstart_doctor::Blind| {
        let (seen, rest) = blind.why.split_once(' ')?;
        let seen = seen.parse::<u64>().ok()?;
        rest.starts_with("of 2700 were").then_some(seen)
    };
    let shares: Vec<u64> = report.blinds.iter().filter_map(walked).collect();
    assert_eq!(shares.len(), SHARDS.len(), "{:#?}", report.blinds);
    let (least, most) = (shares.iter().min(), shares.iter().max());
    let even = least
        .zip(most)
        .is_some_and(|(least, most)| least * 20 >= *most);
    assert!(even, "{shares:?}: {:#?}", report.blinds);
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Letter(u64);

impl Job for Letter {
    const NAME: &'static str = "letter";
}

/// Sixty queues of each of two libraries and 120 processes of a third are more than are looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_and_processes_beyond_the_limits_are_noted() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut client = client(&server.url()).await?;
    let mut batch = redis::pipe();
    // Names without an id: a queue per customer would be one pattern.
    let word = |n: u8| {
        format!(
            "{}{}",
            char::from(b'a' + n / 8),
            "klmnoprs".as_bytes()[usize::from(n % 8)] as char
        )
    };
    for n in 0..60 {
        let queue = format!("bull:mail{}", word(n));
        let (meta, id) = (format!("{queue}:meta"), format!("{queue}:id"));
        batch
            .cmd("HSET")
            .arg(meta)
            .arg("version")
            .arg("bullmq:5.81.5")
            .ignore();
        batch.cmd("SET").arg(id).arg(1).ignore();
        batch
            .cmd("HSET")
            .arg(format!("{queue}:1"))
            .arg(&[
                "name",
                "x",
                "data",
                "{}",
                "opts",
                "{}",
                "timestamp",
                "1700000000000",
            ])
            .ignore();
        batch
            .cmd("LPUSH")
            .arg(format!("{queue}:wait"))
            .arg(1)
            .ignore();
    }
    let job = r#"{"class":"A","args":[],"jid":"0123456789abcdef01234567"}"#;
    batch.cmd("SADD").arg("queues").arg("default").ignore();
    batch.cmd("LPUSH").arg("queue:default").arg(job).ignore();
    for n in 0..120 {
        batch
            .cmd("SADD")
            .arg("processes")
            .arg(format!("host:{n}:abc"))
            .ignore();
    }
    batch.query_async::<()>(&mut client).await?;
    let store = redstart::Store::connect(&format!("{}?timeout=60s", server.url())).await?;
    for n in 0..60 {
        let queue = Queue::new(&store, "shop", &format!("orders-{n}"))?;
        queue.enqueue(&Letter(n)).await?;
    }
    let report = examine(doctor(&server.url()).sampled()).await?;
    for what in [
        "queues of BullMQ",
        "processes of Sidekiq",
        "queues and write-behind shards of Redstart",
    ] {
        let told = report.blinds.iter().any(|blind| blind.what == what);
        assert!(told, "{what}: {:#?} {:?}", report.blinds, report.libraries);
    }
    Ok(())
}

/// One channel without a listener among a thousand with an id in their names: it is found in every run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_nobody_hears_is_found_among_very_many() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut publisher = client(&server.url()).await?;
    let traffic = async {
        loop {
            let mut batch = redis::pipe();
            for user in 0..1000 {
                batch
                    .cmd("PUBLISH")
                    .arg(format!("user:{user}"))
                    .arg("m")
                    .ignore();
            }
            batch.cmd("PUBLISH").arg("mail:send").arg("m").ignore();
            batch.query_async::<()>(&mut publisher).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        #[allow(unreachable_code)]
        redis::RedisResult::Ok(())
    };
    let examination = doctor(&server.url()).observed(Duration::from_secs(2));
    let report = tokio::select! {
        report = examine(examination) => report?,
        end = traffic => { end?; unreachable!() }
    };
    let mut sure = report.sure().filter(|one| one.rule == "publish-to-nobody");
    assert!(
        sure.any(|one| one.subject == "mail:send"),
        "{:#?}",
        report.findings
    );
    let told = report
        .blinds
        .iter()
        .find(|blind| blind.what == "listeners of channels");
    assert!(
        told.is_some_and(|blind| blind.why.contains("64 of 1001")),
        "{:#?}",
        report.blinds
    );
    Ok(())
}
