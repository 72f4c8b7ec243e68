//! Several processes, some of which are stopped or killed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use redstart::locking::{FairMutex, FenceToken, FencedValues, FencedWrite, Guard, Mutex};
use redstart_testkit::{Backend, Child, child, eventually, figure, matrix, scale, wait_until};

use crate::{PATIENCE, connect, exists};

async fn heard() -> anyhow::Result<String> {
    tokio::task::spawn_blocking(child::hear)
        .await?
        .context("the parent is gone")
}

async fn held(mutex: &Mutex) -> anyhow::Result<Guard> {
    mutex.lock(PATIENCE).await?.context("not granted")
}

matrix! {
    processes:
    async fn a_holder_stopped_beyond_its_lease_knows_and_its_write_is_refused(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m")
            .ttl(Duration::from_millis(250)).build()?;
        let fenced = FencedValues::new(&store, backend.namespace(), "values")?;
        if child::role().is_some() {
            loop {
                let guard = held(&mutex).await?;
                child::say(guard.fence());
                if heard().await? == "end" {
                    return Ok(());
                }
                // It was stopped and is now resumed: the first thing that it does is a write.
                let write = fenced.set("x", "stale", guard.fence()).await?;
                let valid = guard.is_valid();
                guard.lost().await;
                child::say(format!("{valid} {}", matches!(write, FencedWrite::Stale { .. })));
                heard().await?;
            }
        }
        let mut holder = Child::of(backend.test()).namespace(backend.namespace()).spawn()?;
        for _ in 0..scale(2, "LOCK_STOPS") {
            let old = FenceToken::new(holder.line().await?.parse()?)?;
            holder.pause()?;
            let guard = held(&mutex).await?;
            ensure!(guard.fence() > old);
            ensure!(fenced.set("x", "fresh", guard.fence()).await? == FencedWrite::Done);
            holder.resume()?;
            holder.tell("write")?;
            assert_eq!(holder.line().await?, "false true", "valid, refused");
            assert_eq!(fenced.get("x").await?.as_deref(), Some(&b"fresh"[..]));
            guard.release().await?;
            holder.tell("next")?;
        }
        holder.line().await?;
        holder.tell("end")?;
        ensure!(holder.wait().await?.success());
        let stops = scale(2, "LOCK_STOPS");
        figure(format!("{}: {stops} of {stops} stopped holders knew, and their writes were refused", backend.test()));
        Ok(())
    }

    async fn a_killed_holder_leaves_the_lock_to_its_ttl(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let mutex = Mutex::builder(&store, backend.namespace(), "m")
            .ttl(Duration::from_millis(500)).build()?;
        if child::role().is_some() {
            let _guard = mutex.lock(PATIENCE).await?.context("not granted")?;
            child::say("held");
            heard().await?;
            return Ok(());
        }
        let mut holder = Child::of(backend.test()).namespace(backend.namespace()).spawn()?;
        assert_eq!(holder.line().await?, "held");
        assert!(mutex.try_lock().await?.is_none());
        holder.kill9();
        let guard = mutex.lock(PATIENCE).await?.context("not granted")?;
        guard.release().await?;
        Ok(())
    }

    async fn contending_processes_never_hold_it_at_once_and_tokens_rise(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let (inside, log) = (
            format!("{}:inside", backend.namespace()),
            format!("{}:log", backend.namespace()),
        );
        let seconds = Duration::from_secs(scale(1, "LOCK_CONTENTION_SECONDS"));
        if child::role().is_some() {
            let mutex = Mutex::builder(&store, backend.namespace(), "m").build()?;
            let fair = FairMutex::builder(&store, backend.namespace(), "f").build()?;
            child::say("ready");
            heard().await?;
            let began = tokio::time::Instant::now();
            let mut held = 0u64;
            while began.elapsed() < seconds {
                // Two kinds of lock, each with its own witnesses.
                let (guard, kind) = match held % 2 {
                    0 => (mutex.lock(PATIENCE).await?, "m"),
                    _ => (fair.lock(PATIENCE).await?, "f"),
                };
                let guard = guard.context("not granted")?;
                let inside = format!("{inside}:{kind}");
                let n: i64 = store.query(redis::cmd("INCR").arg(&inside)).await?;
                ensure!(n == 1, "{n} are inside");
                store.query::<()>(
                    redis::cmd("RPUSH").arg(format!("{log}:{kind}")).arg(guard.fence().get()),
                ).await?;
                tokio::task::yield_now().await;
                let n: i64 = store.query(redis::cmd("DECR").arg(&inside)).await?;
                ensure!(n == 0, "{n} were inside with us");
                guard.release().await?;
                held += 1;
            }
            child::say(held);
            return Ok(());
        }
        let processes = scale(4, "LOCK_PROCESSES");
        let mut children = Vec::new();
        for _ in 0..processes {
            children.push(Child::of(backend.test()).namespace(backend.namespace()).spawn()?);
        }
        for child in &mut children {
            assert_eq!(child.line().await?, "ready");
        }
        for child in &mut children {
            child.tell("go")?;
        }
        // Each may have to wait for all the others.
        let (mut held, mut least, mut most) = (0, u64::MAX, 0);
        for child in &mut children {
            let line = wait_until("a process to end", seconds + PATIENCE, async || child.line().await.ok()).await?;
            let times = line.parse::<u64>()?;
            (held, least, most) = (held + times, least.min(times), most.max(times));
        }
        for child in &mut children {
            ensure!(child.wait().await?.success(), "a process failed");
        }
        let mut total = 0;
        for kind in ["m", "f"] {
            let tokens: Vec<u64> = store
                .query(redis::cmd("LRANGE").arg(format!("{log}:{kind}")).arg(0).arg(-1)).await?;
            ensure!(tokens.is_sorted_by(|a, b| a < b), "tokens do not rise");
            total += tokens.len() as u64;
        }
        assert_eq!(total, held);
        ensure!(held > processes);
        figure(format!("{}: {processes} processes for {seconds:?}, held {held} times ({least} to {most} each), never two at once, tokens rise", backend.test()));
        Ok(())
    }

    async fn a_killed_waiter_does_not_block_the_line(backend: &Backend) -> anyhow::Result<()> {
        let store = connect(backend).await?;
        let fair = FairMutex::builder(&store, backend.namespace(), "f")
            .ttl(Duration::from_millis(900)).build()?;
        if child::role().is_some() {
            fair.lock(PATIENCE).await?;
            anyhow::bail!("killed before that");
        }
        let line = format!("{}:fair:{{f}}:queue", backend.namespace());
        let length = async || -> u64 {
            store.query(redis::cmd("ZCARD").arg(&line)).await.expect("ZCARD is answered")
        };
        let guard = fair.try_lock().await?.context("not granted")?;
        let dead = Child::of(backend.test()).namespace(backend.namespace()).spawn()?;
        ensure!(eventually(PATIENCE, async || length().await == 1).await);
        let waiter = tokio::spawn({ let fair = fair.clone(); async move { fair.lock(PATIENCE).await } });
        ensure!(eventually(PATIENCE, async || length().await == 2).await);
        dead.kill9();
        guard.release().await?;
        let next = waiter.await??.context("not granted")?;
        next.release().await?;
        ensure!(!exists(&store, &line).await);
        Ok(())
    }
}
