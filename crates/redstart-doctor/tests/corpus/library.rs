//! Worlds of Redstart's own patterns, made by the library itself.

use std::time::Duration;

use anyhow::Result;
use redstart::{
    Store,
    caching::{Cache, Changes, Sink, SinkClaim, SinkError, WriteBehind},
    limiting::{Limiter, Quota},
    messaging::{EventStream, Job, Queue, StartAt},
};
use redstart_doctor::{Doctor, DoctorBuilder, Progress, Report};
use redstart_testkit::{Server, wait_until};

use crate::world::Outcome;

/// The rules that are shown here.
pub(crate) const RULES: &[&str] = &[
    "redstart-two-ttls",
    "redstart-two-quotas",
    "redstart-queue-without-workers",
    "redstart-wedged-partition",
];

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes all of them, one after the other.
pub(crate) async fn outcomes(server: &Server) -> Result<Vec<Outcome>> {
    Ok(vec![
        Outcome {
            rule: "redstart-two-ttls",
            subject: "shop:cache.product".to_owned(),
            also: &[],
            faulty: caches(server, [60, 600]).await?,
            healthy: caches(server, [60, 60]).await?,
        },
        Outcome {
            rule: "redstart-two-quotas",
            subject: "shop:limiter.api:{user-*}".to_owned(),
            also: &[],
            faulty: limiters(server, [100, 1000]).await?,
            healthy: limiters(server, [100, 100]).await?,
        },
        Outcome {
            rule: "redstart-queue-without-workers",
            subject: "shop:stream:{orders}".to_owned(),
            also: &[],
            faulty: stream(server, Consumer::None).await?,
            healthy: stream(server, Consumer::Works).await?,
        },
        Outcome {
            rule: "redstart-wedged-partition",
            subject: "shop:stream:{orders}".to_owned(),
            also: &[],
            faulty: stream(server, Consumer::Hangs).await?,
            healthy: stream(server, Consumer::Works).await?,
        },
        Outcome {
            rule: "redstart-queue-without-workers",
            subject: "shop:queue:{mail}".to_owned(),
            also: &[],
            faulty: queue(server, false).await?,
            healthy: queue(server, true).await?,
        },
        Outcome {
            rule: "redstart-queue-without-workers",
            subject: "shop:behind.stock:{0}".to_owned(),
            also: &[],
            faulty: behind(server, false).await?,
            healthy: behind(server, true).await?,
        },
    ])
}

fn doctor(server: &Server) -> DoctorBuilder {
    Doctor::builder(&server.url())
        .sampled()
        .gap(Duration::from_millis(100))
        .share(50)
        .patience(PATIENCE)
}

/// Two processes on one server.
async fn two(server: &Server) -> Result<[Store; 2]> {
    server.command(&["FLUSHALL"]).await?;
    let url = format!("{}?timeout=30s", server.url());
    Ok([Store::connect(&url).await?, Store::connect(&url).await?])
}

/// Observes the server while `work` runs.
async fn observe(
    server: &Server,
    work: impl Future<Output = redstart::Result<()>>,
) -> Result<Report> {
    let doctor = doctor(server)
        .observed(Duration::from_millis(1000))
        .build()?;
    let progress = Progress::default();
    tokio::select! {
        report = doctor.examine(&progress) => Ok(report?),
        stopped = work => {
            stopped?;
            anyhow::bail!("the traffic ended")
        }
    }
}

async fn caches(server: &Server, seconds: [u64; 2]) -> Result<Report> {
    let stores = two(server).await?;
    let mut caches = Vec::new();
    for (store, seconds) in stores.iter().zip(seconds) {
        let cache = Cache::<u64, u64>::builder(store, "shop", "product");
        caches.push(cache.ttl(Duration::from_secs(seconds)).build()?);
    }
    let work = async {
        for key in 0.. {
            let cache = &caches[(key % 2) as usize];
            let load = move |_| async move { Ok::<_, std::io::Error>(Some(key)) };
            cache.get_or_load(&key, load).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    observe(server, work).await
}

async fn limiters(server: &Server, quotas: [u64; 2]) -> Result<Report> {
    let stores = two(server).await?;
    let mut limiters = Vec::new();
    for (store, quota) in stores.iter().zip(quotas) {
        let quota = Quota::per_minute(quota);
        limiters.push(Limiter::token_bucket(store, "shop", "api", quota).build()?);
    }
    let work = async {
        for request in 0u64.. {
            let limiter = &limiters[(request % 2) as usize];
            let subject = format!("user-{}", request / 2 % 10);
            let _ = limiter.check(&subject, 1).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    observe(server, work).await
}

/// What the consumer of a stream does.
#[derive(Clone, Copy, PartialEq)]
enum Consumer {
    /// There is none.
    None,
    /// It takes events and does not finish.
    Hangs,
    /// It acknowledges.
    Works,
}

async fn stream(server: &Server, consumer: Consumer) -> Result<Report> {
    let [store, _] = two(server).await?;
    let orders = EventStream::<u64>::new(&store, "shop", "orders")?;
    let mut group = orders.group("billing", StartAt::Beginning).await?;
    for order in 0..20 {
        orders.append(&order).await?;
    }
    if consumer != Consumer::None {
        let events = group.read("billing-1", 20, PATIENCE).await?;
        anyhow::ensure!(events.len() == 20, "{} events", events.len());
        if consumer == Consumer::Works {
            let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
            group.ack(&ids).await?;
        }
    }
    // Two seconds are long to an examination that calls one of them idle.
    wait_until("the events to be old", PATIENCE, async || {
        let now: Vec<u64> = server.query(&["TIME"]).await.ok()?;
        let info: redis::Value = server
            .command(&["XINFO", "STREAM", "shop:stream:{orders}"])
            .await
            .ok()?;
        let last = format!("{info:?}");
        let last = last.split("last-generated-id").nth(1)?;
        let digits = last.split(|c: char| !c.is_ascii_digit());
        let last: u64 = digits
            .into_iter()
            .find(|part| part.len() > 9)?
            .parse()
            .ok()?;
        (now[0] * 1000 >= last + 3000).then_some(())
    })
    .await?;
    let doctor = doctor(server).idle(Duration::from_secs(1)).build()?;
    Ok(doctor.examine(&Progress::default()).await?)
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Letter(u64);

impl Job for Letter {
    const NAME: &'static str = "letter";
}

/// Jobs that wait: nobody takes them, or somebody paused the queue.
async fn queue(server: &Server, paused: bool) -> Result<Report> {
    let [store, _] = two(server).await?;
    let mail = Queue::new(&store, "shop", "mail")?;
    for n in 0..20 {
        mail.enqueue(&Letter(n)).await?;
    }
    if paused {
        mail.pause().await?;
    }
    examine_later(server).await
}

/// When all that is there has waited for more than a second, which is long to the examination.
async fn examine_later(server: &Server) -> Result<Report> {
    let since: Vec<u64> = server.query(&["TIME"]).await?;
    wait_until("two seconds to pass", PATIENCE, async || {
        let now: Vec<u64> = server.query(&["TIME"]).await.ok()?;
        (now[0] >= since[0] + 2).then_some(())
    })
    .await?;
    let doctor = doctor(server).idle(Duration::from_secs(1)).build()?;
    Ok(doctor.examine(&Progress::default()).await?)
}

/// A database that fails: what is written waits, whether or not a worker tries.
struct Down;

impl Sink<u64> for Down {
    async fn claim(&self, _: &str, _: u32) -> Result<SinkClaim, SinkError> {
        Ok(SinkClaim {
            epoch: 1,
            applied: Default::default(),
        })
    }

    async fn apply(&self, _: &Changes<u64>) -> Result<(), SinkError> {
        Err(SinkError::Unavailable("switched off".into()))
    }

    async fn load(&self, _: &str) -> Result<Option<u64>, SinkError> {
        Ok(None)
    }
}

/// Writes that wait for their database, with a worker that tries or without one.
async fn behind(server: &Server, worker: bool) -> Result<Report> {
    let [store, _] = two(server).await?;
    let stock = WriteBehind::<u64, u64, _>::builder(&store, "shop", "stock", Down)
        .shards(1)
        .build()?;
    let worker = match worker {
        true => Some(stock.work()?),
        false => None,
    };
    for item in 0..20 {
        let _ = stock.put(&item, &item).await?;
    }
    if worker.is_some() {
        wait_until("the worker to own the shard", PATIENCE, async || {
            let owners: u64 = server
                .query(&["EXISTS", "shop:behind.stock:{0}:owner"])
                .await
                .ok()?;
            (owners == 1).then_some(())
        })
        .await?;
    }
    let report = examine_later(server).await;
    drop(worker);
    report
}
