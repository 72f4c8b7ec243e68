//! A sender of webhooks: limits per tenant, and a breaker per tenant's server.
//!
//! One tenant has many more hooks than the others, and another one's server is down. Neither delays the rest: tenants
//! take turns, each has a limit of its own, and calls to a server that is down are not even tried.
//!
//! ```text
//! cargo run -p redstart-examples --example webhooks [redis://localhost]
//! ```

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Result, ensure};
use redstart::{
    Store,
    messaging::{
        Backoff, Job, JobContext, JobLimit, JobPolicy, JobRegistry, Payload, Queue, State, Verdict,
    },
    resilience::{Breaker, CallError},
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Hook {
    tenant: String,
    event: u32,
}

impl Job for Hook {
    const NAME: &'static str = "hook";

    fn policy() -> JobPolicy {
        JobPolicy::new()
            .attempts(3)
            .backoff(Backoff::fixed(Duration::from_millis(50)))
            .timeout(Duration::from_secs(10))
            .expires_after(Duration::from_secs(3600))
    }
}

#[derive(Clone)]
struct App {
    store: Store,
    sent: Arc<Mutex<Vec<String>>>,
}

/// Stands for the tenant's server.
async fn post(app: &App, hook: &Hook) -> Result<(), String> {
    if hook.tenant == "broken" {
        return Err("connection refused".to_owned());
    }
    let mut sent = app.sent.lock().map_err(|_| "poisoned".to_owned())?;
    sent.push(hook.tenant.clone());
    Ok(())
}

async fn send(
    Payload(hook): Payload<Hook>,
    State(app): State<App>,
    _: JobContext,
) -> redstart::Result<Verdict> {
    let breaker = Breaker::builder(&app.store, "example", &format!("hooks-{}", hook.tenant))
        .open()
        .await?;
    Ok(match breaker.call(async || post(&app, &hook).await).await {
        Ok(()) => Verdict::Done,
        Err(CallError::Open { .. }) => {
            Verdict::retry_after(Duration::from_millis(50), "its breaker is open")
        }
        Err(error) => Verdict::retry(error),
    })
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = redstart_examples::store().await?;
    let queue = Queue::builder(&store, "example", "hooks")
        .group_limit(JobLimit::concurrency(2).rate(5000, Duration::from_secs(1)))
        .build()?;
    let hook = |tenant: &str, event| Hook {
        tenant: tenant.to_owned(),
        event,
    };
    queue
        .enqueue_many((0..200).map(|event| hook("noisy", event)))
        .group("noisy")
        .await?;
    queue
        .enqueue_many((0..5).map(|event| hook("broken", event)))
        .group("broken")
        .await?;
    for event in 0..3 {
        queue.enqueue(&hook("quiet", event)).group("quiet").await?;
    }

    let app = App {
        store: store.clone(),
        sent: Arc::default(),
    };
    let registry = JobRegistry::new(app.clone()).on(send);
    let worker = queue.serve(&registry).concurrency(4).start().await?;
    while queue.inspect().counts().await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    worker.shutdown(Duration::from_secs(5)).await?;

    let sent = {
        let sent = app.sent.lock();
        sent.map_err(|_| anyhow::anyhow!("poisoned"))?.clone()
    };
    let last_quiet = sent.iter().rposition(|tenant| tenant == "quiet");
    ensure!(sent.len() == 203, "{} were sent", sent.len());
    println!(
        "203 hooks were sent; the quiet tenant's last was number {}",
        last_quiet.unwrap_or(0) + 1
    );
    let letters = queue.inspect().dead_letters();
    for group in letters.groups().await? {
        println!("  {} dead: {}", group.count, group.error);
    }
    ensure!(letters.purge(|_| true).await? == 5);
    Ok(())
}
