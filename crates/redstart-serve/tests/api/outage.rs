//! A part of the store is down: the dashboard shows what the rest has.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use redstart::{Store, messaging::Queue};
use redstart_testkit::{Cluster, Kind, eventually, key_slot};

use serde_json::json;

use crate::{
    Served,
    client::{Client, PATIENCE},
};

async fn page(client: &mut Client, path: &str) -> Result<(u16, String)> {
    let answer = client.send("GET", path, &[("accept", "text/html")], b"");
    let answer = answer.await?;
    Ok((answer.status, answer.text()))
}

/// While a master hangs and nobody has taken its place, an operator needs the pages most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_takes_no_screen_of_the_others_away() -> Result<()> {
    let cluster = Cluster::builder(Kind::Redis)
        .config("cluster-require-full-coverage", "no")
        .start()
        .await?;
    let store = Store::connect(&format!("{}?timeout=500ms", cluster.url())).await?;
    let served = Served::on(&store, "n", "").await?;
    let mut client = served.client();
    // One queue on each of two masters.
    let mut names: Vec<(usize, String)> = Vec::new();
    for n in 0..200 {
        let name = format!("q{n}");
        let slot = key_slot(format!("n:queue:{{{name}}}").as_bytes());
        let owner = cluster.owner(slot).await?;
        if names.iter().all(|(known, _)| *known != owner) {
            names.push((owner, name));
        }
        if names.len() == 2 {
            break;
        }
    }
    let [(dead, lost), (_, kept)] = &names[..] else {
        anyhow::bail!("the slots are not shared: {names:?}");
    };
    for name in [lost, kept] {
        let queue = Queue::new(&store, "n", name)?;
        queue.enqueue_raw("mail", b"1").await?;
    }
    let known = eventually(PATIENCE, async || {
        let page = page(&mut client, "/queues?namespace=n").await;
        matches!(page, Ok((200, text)) if text.contains(lost.as_str()) && text.contains(kept.as_str()))
    });
    ensure!(known.await, "the queues are not found");
    cluster.node(*dead).pause()?;
    // Until links to it fail, and after the look that was made before is too old.
    let begun = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    while begun.elapsed() < Duration::from_secs(8) {
        ticks.tick().await;
        for path in [
            format!("/queues/{kept}?namespace=n"),
            "/queues?namespace=n".to_owned(),
            "/locks?namespace=n".to_owned(),
        ] {
            let (status, text) = page(&mut client, &path).await?;
            ensure!(status == 200, "{path}: {status} {text}");
        }
        // The time of a count is that of the queue's own master.
        let filter = json!({"action": "cancel", "state": "ready", "all": true});
        let path = format!("/v1/queues/{kept}/bulk?namespace=n");
        let counted = client.post(&path, filter).await?;
        ensure!(counted.status == 202, "{}", counted.text());
    }
    let (_, queues) = page(&mut client, "/queues?namespace=n").await?;
    ensure!(queues.contains("not answered"), "{queues}");
    let (status, overview) = page(&mut client, "/?namespace=n").await?;
    ensure!(status == 200, "{overview}");
    let address = cluster.node(*dead).addr();
    ensure!(
        overview.contains(&address),
        "{address} is not named: {overview}"
    );
    ensure!(overview.contains("does not answer"), "{overview}");
    ensure!(
        !overview.contains("0.0 MiB"),
        "what is not known is no zero: {overview}"
    );
    cluster.node(*dead).resume()?;
    let (_, name) = names.first().context("none")?;
    let back = eventually(PATIENCE, async || {
        matches!(
            page(&mut client, &format!("/queues/{name}?namespace=n")).await,
            Ok((200, _))
        )
    });
    ensure!(back.await);
    served.stop().await
}
