//! What a script does on the server is bounded, however full the keys of its lock are.

use std::time::Duration;

use anyhow::Context as _;
use redstart::locking::{FairMutex, LockHolders, RwLock, Semaphore};
use redstart_testkit::{Kind, MonitorTap, Server};

use crate::{FOREVER, permits};

const DEAD: usize = 5_000;
/// Commands of one call, and words of one command: 100 leases that ended are removed at a time.
const MOST_COMMANDS: usize = 16;
const MOST_WORDS: usize = 110;

/// A sorted set of leases, most of which ended long ago.
async fn fill(server: &Server, key: &str, score: &str) -> anyhow::Result<()> {
    let names: Vec<String> = (0..DEAD).map(|n| format!("rs-dead-{n}")).collect();
    for chunk in names.chunks(500) {
        let mut words = vec!["ZADD", key];
        for name in chunk {
            words.extend([score, name]);
        }
        server.command(&words).await?;
    }
    Ok(())
}

#[tokio::test]
async fn no_script_of_a_lock_visits_more_than_a_bounded_number_of_leases() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = redstart::Store::builder(&server.url())
        .deadline(Duration::from_secs(20))
        .connect()
        .await?;
    let semaphore = Semaphore::builder(&store, "app", "s", permits(2))
        .ttl(FOREVER)
        .build()?;
    let fair = FairMutex::builder(&store, "app", "f")
        .ttl(FOREVER)
        .build()?;
    let rw = RwLock::builder(&store, "app", "rw").ttl(FOREVER).build()?;
    let keys = [
        "app:semaphore:{s}",
        "app:fair:{f}:queue",
        "app:fair:{f}:places",
        "app:rw:{rw}:readers",
        "app:rw:{rw}:waiting",
    ];
    for key in keys {
        fill(&server, key, "1").await?;
    }
    let tap = MonitorTap::start(&server).await?;
    for _ in 0..3 {
        let guard = semaphore
            .try_acquire()
            .await?
            .context("dead holders have no permits")?;
        guard.extend(FOREVER).await?;
        assert_eq!(semaphore.holders().await?.count, 1);
        guard.release().await?;
        // The line is cleared step by step: this one may have to wait for that.
        if let Some(guard) = fair.try_lock().await? {
            guard.release().await?;
        }
        let _ = fair.holder().await?;
        let reader = rw.try_read().await?.context("dead writers do not wait")?;
        assert_eq!(rw.holders().await?.readers.count, 1);
        reader.release().await?;
        let writer = rw.try_write().await?.context("dead readers do not read")?;
        writer.release().await?;
    }
    let (mut commands, mut most, mut words, mut removed) = (0, 0, 0, 0);
    for seen in tap.commands().await? {
        if !seen.is_from_script() {
            commands = 0;
            continue;
        }
        commands += 1;
        most = most.max(commands);
        words = words.max(seen.words.len());
        if seen.name() == "ZREM" {
            removed += seen.words.len().saturating_sub(2);
        }
    }
    assert!(most <= MOST_COMMANDS, "{most} commands in one call");
    assert!(words <= MOST_WORDS, "{words} words in one command");
    assert!(
        removed > 10 * LockHolders::MOST,
        "{removed}: dead leases are removed all the same"
    );
    Ok(())
}

#[tokio::test]
async fn the_line_of_a_fair_mutex_is_free_again_after_thousands_of_dead_waiters()
-> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let store = redstart::Store::builder(&server.url())
        .deadline(Duration::from_secs(20))
        .connect()
        .await?;
    let fair = FairMutex::builder(&store, "app", "f")
        .ttl(FOREVER)
        .build()?;
    for key in ["app:fair:{f}:queue", "app:fair:{f}:places"] {
        fill(&server, key, "1").await?;
    }
    let guard = fair.lock(crate::PATIENCE).await?.context("not granted")?;
    guard.release().await?;
    Ok(())
}
