//! Hand-written limiter, lock and cache under real concurrency, and their correct versions.

use std::{future::Future, time::Duration};

use redis::{AsyncCommands as _, aio::MultiplexedConnection};
use redstart_doctor::Report;
use redstart_testkit::{Kind, Server};

use crate::{client, doctor, has, sure};

/// Runs eight programs, each with a connection of its own, while the doctor observes.
async fn observe<F>(program: impl Fn(usize, MultiplexedConnection) -> F) -> anyhow::Result<Report>
where
    F: Future<Output = redis::RedisResult<()>> + Send + 'static,
{
    let server = Server::builder(Kind::Redis).start().await?;
    let mut programs = tokio::task::JoinSet::new();
    for i in 0..8 {
        let client = client(&server.url()).await?;
        programs.spawn(program(i, client));
    }
    let examination = doctor(&server.url())
        .sampled()
        .observed(Duration::from_secs(3))
        .build()?;
    let report = examination
        .examine(&redstart_doctor::Progress::default())
        .await?;
    programs.abort_all();
    Ok(report)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limiter_that_reads_before_it_counts_is_proven_to_race() -> anyhow::Result<()> {
    let report = observe(|_, mut client| async move {
        loop {
            let used: Option<i64> = client.get("rate:api").await?;
            if used.unwrap_or(0) < 1_000_000 {
                let _: i64 = client.incr("rate:api", 1).await?;
            }
        }
    })
    .await?;
    let proven = report
        .findings
        .iter()
        .find(|finding| finding.rule == "check-then-increment");
    let proven = proven.ok_or_else(|| anyhow::anyhow!("{:#?}", report.findings))?;
    assert!(
        proven.evidence.starts_with("proven") && proven.confidence > 0.9,
        "{proven:?}"
    );
    assert_eq!(proven.subject, "rate:api");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limiter_in_one_script_is_not_accused() -> anyhow::Result<()> {
    let report = observe(|_, mut client| async move {
        const LUA: &str =
            "local n = tonumber(redis.call('get', KEYS[1]) or '0') if n >= 1000000 then return 0 end \
             n = redis.call('incr', KEYS[1]) if n == 1 then redis.call('pexpire', KEYS[1], 60000) end return 1";
        let mut check = redis::cmd("EVAL");
        check.arg(LUA).arg(1).arg("rate:api");
        loop {
            let _: i64 = check.query_async(&mut client).await?;
        }
    })
    .await?;
    assert_eq!(sure(&report), [] as [&str; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_owner_is_found_and_a_correct_one_is_not() -> anyhow::Result<()> {
    let report = observe(|_, mut client| async move {
        loop {
            let mut take = redis::cmd("SET");
            take.arg("lock:report")
                .arg("locked")
                .arg("NX")
                .arg("PX")
                .arg(5);
            if take
                .query_async::<Option<String>>(&mut client)
                .await?
                .is_some()
            {
                // Longer than the lock's TTL.
                tokio::time::sleep(Duration::from_millis(12)).await;
                let _: i64 = client.del("lock:report").await?;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await?;
    for rule in [
        "lock-without-owner",
        "lock-released-by-del",
        "lock-outlived",
    ] {
        assert!(has(&report, rule), "{rule}: {:#?}", report.findings);
    }

    let report = observe(|i, mut client| async move {
        const RELEASE: &str =
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
        for n in 0.. {
            let token = format!("0f8fad5b-d9cb-{i:04x}-a165-{n:012x}");
            let mut take = redis::cmd("SET");
            take.arg("lock:report").arg(&token).arg("NX").arg("PX").arg(30_000);
            if take.query_async::<Option<String>>(&mut client).await?.is_some() {
                let mut release = redis::cmd("EVAL");
                release.arg(RELEASE).arg(1).arg("lock:report").arg(&token);
                let _: i64 = release.query_async(&mut client).await?;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    })
    .await?;
    assert_eq!(sure(&report), [] as [&str; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_fill_that_overtakes_an_invalidation_is_proven() -> anyhow::Result<()> {
    let report = observe(|i, mut client| async move {
        for n in 0.. {
            if i == 0 {
                let _: i64 = client.del("product:7").await?;
                tokio::time::sleep(Duration::from_millis(3)).await;
                continue;
            }
            let cached: Option<String> = client.get("product:7").await?;
            if cached.is_none() {
                // The database.
                tokio::time::sleep(Duration::from_millis(2)).await;
                let _: () = client
                    .set_ex("product:7", format!("{{\"price\":{}}}", n / 10), 60)
                    .await?;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    })
    .await?;
    assert!(has(&report, "cache-fill-race"), "{:#?}", report.findings);
    Ok(())
}

/// Fills the entry unless it was invalidated since the miss: the miss took a lease, and an invalidation deletes it.
async fn with_a_lease(i: usize, mut client: MultiplexedConnection) -> redis::RedisResult<()> {
    const LOOK: &str = "local v = redis.call('get', KEYS[1]) if v then return v end \
        redis.call('set', KEYS[2], ARGV[1], 'NX', 'PX', 5000) return false";
    const FILL: &str = "if redis.call('get', KEYS[2]) ~= ARGV[1] then return 0 end \
        redis.call('set', KEYS[1], ARGV[2], 'EX', 60) redis.call('del', KEYS[2]) return 1";
    for n in 0.. {
        if i == 0 {
            let _: i64 = client.del(&["product:7", "product:7:lease"]).await?;
            tokio::time::sleep(Duration::from_millis(3)).await;
            continue;
        }
        let token = format!("0f8fad5b-d9cb-{i:04x}-a165-{n:012x}");
        let mut look = redis::cmd("EVAL");
        look.arg(LOOK)
            .arg(2)
            .arg("product:7")
            .arg("product:7:lease");
        let cached: Option<String> = look.arg(&token).query_async(&mut client).await?;
        if cached.is_none() {
            // The database.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let mut fill = redis::cmd("EVAL");
            fill.arg(FILL)
                .arg(2)
                .arg("product:7")
                .arg("product:7:lease");
            fill.arg(&token).arg(format!("{{\"price\":{}}}", n / 10));
            let _: i64 = fill.query_async(&mut client).await?;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Fills the entry in a transaction that fails if the key was touched since the miss.
async fn with_a_watch(i: usize, mut client: MultiplexedConnection) -> redis::RedisResult<()> {
    for n in 0.. {
        if i == 0 {
            let _: i64 = client.del("product:7").await?;
            tokio::time::sleep(Duration::from_millis(3)).await;
            continue;
        }
        let watch = redis::cmd("WATCH").arg("product:7").to_owned();
        watch.query_async::<()>(&mut client).await?;
        let cached: Option<String> = client.get("product:7").await?;
        if cached.is_some() {
            redis::cmd("UNWATCH").query_async::<()>(&mut client).await?;
        } else {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let mut fill = redis::pipe();
            let value = format!("{{\"price\":{}}}", n / 10);
            fill.atomic().set_ex("product:7", value, 60).ignore();
            let _: Option<()> = fill.query_async(&mut client).await?;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_fill_that_an_invalidation_stops_is_not_accused() -> anyhow::Result<()> {
    let report = observe(with_a_lease).await?;
    assert_eq!(sure(&report), [] as [&str; 0], "with a lease");
    let report = observe(with_a_watch).await?;
    assert_eq!(sure(&report), [] as [&str; 0], "with WATCH");
    Ok(())
}

/// The library's own cache, of eight processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_of_redstart_that_is_invalidated_is_not_accused() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let mut programs = tokio::task::JoinSet::new();
    for i in 0..8u64 {
        let store = redstart::Store::connect(&format!("{}?timeout=30s", server.url())).await?;
        let cache = redstart::caching::Cache::<u64, u64>::builder(&store, "shop", "product")
            .ttl(Duration::from_secs(60))
            .build()?;
        programs.spawn(async move {
            for n in 0.. {
                if i == 0 {
                    cache.invalidate(&7).await?;
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    continue;
                }
                let load = move |_| async move {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    Ok::<_, std::io::Error>(Some(n))
                };
                cache.get_or_load(&7, load).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            anyhow::Ok(())
        });
    }
    let examination = doctor(&server.url())
        .sampled()
        .observed(Duration::from_secs(3));
    let report = crate::examine(examination).await?;
    programs.abort_all();
    assert_eq!(sure(&report), [] as [&str; 0]);
    Ok(())
}
