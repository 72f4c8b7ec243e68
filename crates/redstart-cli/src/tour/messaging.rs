//! Queues, topics, streams, sessions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use redstart::{
    messaging::{
        Backoff, Enqueued, EventStream, Heard, Job, JobContext, NotifySet, PriorityQueue, Queue,
        ReliableList, Ring, Settled, StartAt, Topic, UniqueUntil, Verdict,
    },
    sessions::{Patched, Rotated, Sessions, Trail},
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "messaging and sessions",
    steps: &[
        Step {
            pattern: "job_queue",
            run: |stage| Box::pin(job_queue(stage)),
        },
        Step {
            pattern: "dead_letter",
            run: |stage| Box::pin(dead_letter(stage)),
        },
        Step {
            pattern: "delayed_jobs",
            run: |stage| Box::pin(delayed_jobs(stage)),
        },
        Step {
            pattern: "priority_queue",
            run: |stage| Box::pin(priority_queue(stage)),
        },
        Step {
            pattern: "reliable_list",
            run: |stage| Box::pin(reliable_list(stage)),
        },
        Step {
            pattern: "ring",
            run: |stage| Box::pin(ring(stage)),
        },
        Step {
            pattern: "notification",
            run: |stage| Box::pin(notification(stage)),
        },
        Step {
            pattern: "topic",
            run: |stage| Box::pin(topic(stage)),
        },
        Step {
            pattern: "event_stream",
            run: |stage| Box::pin(event_stream(stage)),
        },
        Step {
            pattern: "session",
            run: |stage| Box::pin(session(stage)),
        },
        Step {
            pattern: "trail",
            run: |stage| Box::pin(trail(stage)),
        },
    ],
};

const WAIT: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(200);

#[derive(Serialize, Deserialize)]
struct Mail {
    number: u32,
}

impl Job for Mail {
    const NAME: &'static str = "mail";
}

/// Polls until something is true, or for a while; queues work in tasks of their own.
macro_rules! until {
    ($holds:expr) => {{
        let deadline = Instant::now() + WAIT * 2;
        loop {
            if $holds {
                break true;
            }
            if Instant::now() >= deadline {
                break false;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }};
}

async fn job_queue(stage: &mut Stage) -> anyhow::Result<()> {
    let queue = Queue::new(stage.store(), stage.namespace(), "mail")?;
    let many = queue
        .enqueue_many((0..500).map(|number| Mail { number }))
        .await?;
    stage.claim(many.added.len() == 500, "500 jobs are taken in one call")?;
    let unique = queue
        .enqueue(&Mail { number: 500 })
        .unique("report", UniqueUntil::Done)
        .await?;
    let twice = queue
        .enqueue(&Mail { number: 500 })
        .unique("report", UniqueUntil::Done)
        .await?;
    stage.claim(
        unique.is_new() && matches!(twice.enqueued(), Enqueued::Duplicate(_)),
        "a unique job is enqueued once",
    )?;
    let sum = Arc::new(AtomicU64::new(0));
    let work = |sum: Arc<AtomicU64>| {
        move |mail: Mail, _: JobContext| {
            let sum = sum.clone();
            async move {
                sum.fetch_add(u64::from(mail.number), Ordering::SeqCst);
            }
        }
    };
    // The first worker is stopped half-way; the second continues with what it left.
    let first = queue
        .worker(work(sum.clone()))
        .concurrency(4)
        .start()
        .await?;
    until!(sum.load(Ordering::SeqCst) > 0);
    let report = first.shutdown(WAIT).await?;
    let second = queue
        .worker(work(sum.clone()))
        .concurrency(16)
        .start()
        .await?;
    let empty = until!(
        queue.inspect().counts().await?.unfinished() == 0
            && sum.load(Ordering::SeqCst) >= 500 * 501 / 2
    );
    let rest = second.shutdown(WAIT).await?;
    stage.claim(empty, "every job was run")?;
    stage.claim(
        report.done + rest.done == 501,
        "and acknowledged once, by one of two workers",
    )?;
    stage.claim(
        sum.load(Ordering::SeqCst) == 500 * 501 / 2,
        "none was run twice",
    )?;
    stage.did(501);
    stage.show(format!(
        "501 jobs, two workers: {} by the first, which was stopped, {} by the second",
        report.done, rest.done
    ));
    Ok(())
}

async fn dead_letter(stage: &mut Stage) -> anyhow::Result<()> {
    let queue = Queue::new(stage.store(), stage.namespace(), "mail")?;
    let (tries, healed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let handler = {
        let (tries, healed) = (tries.clone(), healed.clone());
        move |_: Mail, _: JobContext| {
            tries.fetch_add(1, Ordering::SeqCst);
            let outcome = match healed.load(Ordering::SeqCst) {
                0 => Verdict::retry("the mail server is down"),
                _ => Verdict::Done,
            };
            async move { outcome }
        }
    };
    let retry = Backoff::fixed(Duration::from_millis(5));
    let worker = queue.worker(handler).retry(retry, 3).start().await?;
    queue.enqueue(&Mail { number: 1 }).await?;
    let letters = queue.inspect().dead_letters();
    let died = until!(letters.list(None).await?.len() == 1);
    stage.claim(
        died && tries.load(Ordering::SeqCst) == 3,
        "after exactly three attempts it is a dead letter",
    )?;
    healed.store(1, Ordering::SeqCst);
    stage.claim(
        letters.replay(|_| true).await? == 1,
        "it is replayed once the fault is fixed",
    )?;
    let done = until!(
        queue.inspect().counts().await?.unfinished() == 0 && tries.load(Ordering::SeqCst) == 4
    );
    worker.shutdown(WAIT).await?;
    stage.claim(done && letters.list(None).await?.is_empty(), "and done")?;
    stage.did(4);
    stage.show("a job failed three times, became a dead letter with its reason, and was replayed");
    Ok(())
}

async fn delayed_jobs(stage: &mut Stage) -> anyhow::Result<()> {
    let queue = Queue::new(stage.store(), stage.namespace(), "mail")?;
    let (sent, mut order) = tokio::sync::mpsc::unbounded_channel();
    let worker = queue
        .worker(move |mail: Mail, _: JobContext| {
            let sent = sent.clone();
            async move {
                let _ = sent.send((mail.number, Instant::now()));
            }
        })
        .start()
        .await?;
    let started = Instant::now();
    for (number, delay) in [(2, SOON * 2), (1, SOON), (0, Duration::ZERO)] {
        queue.enqueue(&Mail { number }).delay(delay).await?;
    }
    for expected in 0..3 {
        let got = tokio::time::timeout(WAIT, order.recv()).await?;
        let Some((number, at)) = got else {
            anyhow::bail!("the worker stopped")
        };
        stage.claim(
            number == expected,
            "delayed jobs run in order of their due times",
        )?;
        // A little tolerance: the delay follows the server's clock, this is our own.
        let early = (at - started) + Duration::from_millis(20) < SOON * expected;
        stage.claim(!early, "and not before it")?;
    }
    worker.shutdown(WAIT).await?;
    stage.did(3);
    stage.show("three delayed jobs ran in order of their due times, without polling");
    Ok(())
}

async fn priority_queue(stage: &mut Stage) -> anyhow::Result<()> {
    let queue = PriorityQueue::<String>::new(stage.store(), stage.namespace(), "calls")?;
    for (name, priority) in [("newsletter", 9), ("fire", 0), ("invoice", 5)] {
        queue.push(&name.to_owned(), priority).await?;
    }
    stage.claim(
        queue.pop(WAIT).await?.as_deref() == Some("fire"),
        "the most urgent comes first",
    )?;
    let mut consumer = queue.consumer(SOON).await?;
    let reserved = consumer.reserve(WAIT).await?;
    stage.claim(
        reserved
            .as_ref()
            .is_some_and(|call| call.item() == "invoice"),
        "then the next",
    )?;
    if let Some(reserved) = reserved {
        let _ = reserved.give_back().await?;
    }
    let again = consumer.reserve(WAIT).await?;
    stage.claim(
        again.as_ref().is_some_and(|call| call.item() == "invoice"),
        "an item that was given back is delivered again",
    )?;
    if let Some(again) = again {
        stage.claim(again.done().await? == Settled::Done, "and is done once")?;
    }
    stage.did(7);
    stage.show("the fire came before the newsletter, and an item that was given back was not lost");
    Ok(())
}

async fn reliable_list(stage: &mut Stage) -> anyhow::Result<()> {
    let list = ReliableList::builder(stage.store(), stage.namespace(), "orders")
        .lease(SOON * 2)
        .build()?;
    for n in 0..20 {
        list.push(format!("order {n}")).await?;
    }
    // A consumer that dies while it holds an item: dropped, not closed.
    let mut doomed = list.consumer().await?;
    let lost = doomed.take(WAIT).await?;
    stage.claim(lost.is_some(), "an item is taken")?;
    drop((lost, doomed));
    if stage.store().is_embedded() {
        stage.store().advance(SOON * 3)?;
    }
    let mut consumer = list.consumer().await?;
    let mut seen = std::collections::BTreeSet::new();
    let deadline = Instant::now() + WAIT;
    while seen.len() < 20 && Instant::now() < deadline {
        if let Some(item) = consumer.take(SOON).await? {
            let payload = item.payload().to_vec();
            if item.done().await? == Settled::Done {
                seen.insert(payload);
            }
        }
    }
    consumer.close().await?;
    stage.claim(seen.len() == 20, "items of a dead consumer are taken again")?;
    stage.did(40);
    stage.show("a consumer died while it held an order; another finished all twenty");
    Ok(())
}

async fn ring(stage: &mut Stage) -> anyhow::Result<()> {
    let ring = Ring::new(stage.store(), stage.namespace(), "feeds")?;
    for n in 0..5 {
        ring.add(&format!("feed-{n}")).await?;
    }
    let visits = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (ring, visits) = (ring.clone(), visits.clone());
        tasks.spawn(async move {
            for _ in 0..5 {
                if let (Some(visit), Ok(mut visits)) = (ring.next().await?, visits.lock()) {
                    visits.push((visit.lap, visit.item));
                }
            }
            Ok::<_, redstart::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let mut visits = visits
        .lock()
        .map(|visits| visits.clone())
        .unwrap_or_default();
    visits.sort();
    visits.dedup();
    stage.claim(
        visits.len() == 20,
        "four workers visited five items in four laps, each once per lap",
    )?;
    ring.add("feed-new").await?;
    let mut found = false;
    for _ in 0..7 {
        found |= ring
            .next()
            .await?
            .is_some_and(|visit| visit.item == "feed-new");
    }
    stage.claim(
        found,
        "an item that was added during the laps is visited too",
    )?;
    stage.did(27);
    stage.show("four workers visited five feeds in four laps; no feed was skipped or visited twice in a lap");
    Ok(())
}

async fn notification(stage: &mut Stage) -> anyhow::Result<()> {
    let changed = NotifySet::new(stage.store(), stage.namespace(), "changed")?;
    let mut consumer = changed.consumer();
    let taking = tokio::spawn(async move {
        let mut taken = 0;
        let deadline = Instant::now() + WAIT;
        while taken < 300 && Instant::now() < deadline {
            taken += consumer.take(50, SOON).await?.len();
        }
        Ok::<_, redstart::Error>(taken)
    });
    for n in 0..300 {
        changed.add(&[format!("user-{n}")]).await?;
        if n % 10 == 0 {
            tokio::task::yield_now().await;
        }
    }
    stage.claim(
        taking.await?? == 300,
        "no wake-up is lost, however adding and taking interleave",
    )?;
    stage.did(600);
    stage.show(
        "300 changes, added while a consumer kept falling asleep and waking up: none was missed",
    );
    Ok(())
}

async fn topic(stage: &mut Stage) -> anyhow::Result<()> {
    let goals = Topic::<u32>::new(stage.store(), stage.namespace(), "goals")?;
    let mut listeners = vec![goals.listen().await?, goals.listen().await?];
    for n in 0..50 {
        goals.publish(&n).await?;
    }
    for listener in &mut listeners {
        for n in 0..50 {
            let heard = tokio::time::timeout(WAIT, listener.next()).await?;
            let right = matches!(heard, Some(Heard::Message { message, .. }) if message == n);
            stage.claim(right, "every listener hears every message in order")?;
        }
    }
    stage.did(150);
    stage.show("50 typed messages reached two listeners in order; a lost connection would have been reported as a gap");
    Ok(())
}

async fn event_stream(stage: &mut Stage) -> anyhow::Result<()> {
    let orders = EventStream::<u32>::new(stage.store(), stage.namespace(), "orders")?;
    let mut billing = orders.group("billing", StartAt::Beginning).await?;
    let mut audit = orders.group("audit", StartAt::Beginning).await?;
    for n in 0..30 {
        orders.append(&n).await?;
    }
    let events = billing.read("billing-1", 30, WAIT).await?;
    stage.claim(events.len() == 30, "a group reads every event")?;
    let ids: Vec<&String> = events.iter().map(|entry| &entry.id).collect();
    billing.ack(&ids).await?;
    stage.claim(
        orders.trim(Duration::ZERO).await? == 0,
        "nothing is trimmed that a group has not read",
    )?;
    let seen = audit.read("audit-1", 10, WAIT).await?;
    stage.claim(
        seen.iter().map(|entry| entry.event).eq(0..10),
        "the slower group reads all events in order",
    )?;
    stage.did(72);
    stage.show(
        "one group had finished, the other had not begun: trimming removed nothing that it still needs",
    );
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Data {
    cart: Vec<u32>,
}

async fn session(stage: &mut Stage) -> anyhow::Result<()> {
    let sessions = Sessions::new(stage.store(), stage.namespace(), "web")?;
    let token = sessions.create("ann", &Data { cart: vec![] }).await?;
    let other = sessions.create("ann", &Data { cart: vec![] }).await?;
    // Patches race a logout.
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let (sessions, token) = (sessions.clone(), token.clone());
        tasks.spawn(async move {
            if n == 50 {
                sessions.revoke(&token).await?;
            }
            sessions
                .patch(&token, &serde_json::json!({ "cart": [n] }))
                .await
        });
    }
    let mut gone = 0;
    while let Some(ended) = tasks.join_next().await {
        gone += u32::from(ended?? == Patched::Gone);
    }
    stage.claim(
        gone > 0,
        "patches after the logout report that the session is gone",
    )?;
    stage.claim(
        sessions.load::<Data>(&token).await?.is_none(),
        "no patch revived the session",
    )?;
    stage.claim(
        sessions.list("ann").await?.len() == 1,
        "the user's index lists the remaining session",
    )?;
    let Rotated::To(rotated) = sessions.rotate(&other).await? else {
        anyhow::bail!("the session is gone")
    };
    stage.claim(
        sessions.rotate(&other).await? != Rotated::Gone,
        "requests in flight can still use the old token for a short grace period",
    )?;
    stage.claim(
        sessions.load::<Data>(&rotated).await?.is_some(),
        "the new token opens the session",
    )?;
    let raw = rotated.expose();
    let leaked = stage.store().scan(&format!("*{raw}*")).await?;
    stage.claim(leaked.is_empty(), "the server never sees the token itself")?;
    stage.claim(sessions.revoke_all("ann").await? == 1, "logout everywhere")?;
    stage.did(110);
    stage.show(
        "100 patches raced a logout and none revived the session; then ann logged out everywhere",
    );
    Ok(())
}

async fn trail(stage: &mut Stage) -> anyhow::Result<()> {
    let trail = Trail::builder(stage.store(), stage.namespace(), "pages")
        .pages(3)
        .build()?;
    for page in ["/", "/tea", "/tea/green", "/cart"] {
        trail.visit("ann", page).await?;
    }
    let pages = trail.pages("ann").await?;
    stage.claim(
        pages == ["/tea", "/tea/green", "/cart"],
        "the last three pages, in order",
    )?;
    for key in stage
        .store()
        .scan(&format!("{}:*", stage.namespace()))
        .await?
    {
        let ttl: i64 = stage
            .store()
            .query(redstart::redis::cmd("PTTL").arg(&key))
            .await?;
        stage.claim(
            ttl > 0 && ttl <= 60_000,
            "the trail ends a minute after the last page",
        )?;
    }
    stage.did(5);
    stage.show("the last three pages of a visit; the trail expires a minute after the last one");
    Ok(())
}
