//! Periods over many years: the right key, the right expiry, and no key without one.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, ToSpan as _, civil::date, tz::TimeZone};
use redstart::{
    Store,
    ranking::{Leaderboard, Period, Policy, Ties},
};
use redstart_engine::{Clock, Engine};
use redstart_testkit::{Kind, Server, scale};

const RETAIN: Duration = Duration::from_secs(8 * 86400);

fn ties(n: usize) -> Ties {
    [
        Ties::EarliestFirst { max_points: 1000 },
        Ties::Competition,
        Ties::Dense,
    ][n % 3]
}

/// Every key of a namespace, with the moment at which it expires, in ms since the epoch; -1 for never.
async fn expiries(store: &Store, pattern: &str) -> anyhow::Result<Vec<(String, i64)>> {
    let keys = store.scan(pattern).await?;
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.cmd("PEXPIRETIME").arg(key);
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let at: Vec<i64> = store.pipeline(&pipeline).await?;
    Ok(keys
        .into_iter()
        .zip(at)
        .filter(|(_, at)| *at != -2)
        .collect())
}

/// The engine's clock walks from 2018 to 2040. Some of the zones jump over midnight, and Samoa is on the other side of
/// the date line.
#[tokio::test]
async fn every_day_of_23_years_has_its_keys_and_their_expiries() -> anyhow::Result<()> {
    let days = 23 * 365 + 6;
    let step = (days / scale(100, "LEADERBOARD_CALENDAR")).max(1) as i64;
    let mut looked = 0;
    for zone in ["UTC", "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Apia"] {
        let zone = TimeZone::get(zone)?;
        let begin = date(2018, 1, 1).to_zoned(zone.clone())?.timestamp();
        let engine = Engine::builder()
            .clock(Clock::manual_at(begin.as_microsecond()))
            .cluster_strict(true)
            .build()?;
        let store = Store::try_from(engine)?;
        let mut now = begin;
        let mut day = date(2018, 1, 1);
        let mut number = 0;
        while day < date(2041, 1, 1) {
            let start = day.to_zoned(zone.clone())?.start_of_day()?.timestamp();
            let end = day
                .tomorrow()?
                .to_zoned(zone.clone())?
                .start_of_day()?
                .timestamp();
            // The first moment of the day, one in it, and the last.
            let inside = SignedDuration::from_secs(3600 + i64::from(day.day()) * 2500);
            for moment in [start, start + inside, end - SignedDuration::from_millis(1)] {
                store.advance(moment.duration_since(now).unsigned_abs())?;
                now = moment;
                assert_eq!(store.time().await?.as_micros() as i64, now.as_microsecond());
                for (n, period) in [Period::Day, Period::Week, Period::Month]
                    .into_iter()
                    .enumerate()
                {
                    let name = format!("{period:?}");
                    let board = Leaderboard::builder(&store, "walk", &name)
                        .ties(ties(n + number))
                        .period(period, zone.clone(), RETAIN)
                        .build()?;
                    // Each tie rule has its own keys; what the others wrote in this period goes.
                    let current = board.current().await?;
                    assert_eq!(current, period.of(day, &zone)?);
                    assert_eq!(board.period_at(now)?, current);
                    for key in store
                        .scan(&format!("walk:*{{{name}}}:*:{}*", current.label()))
                        .await?
                    {
                        store.query::<()>(redis::cmd("DEL").arg(key)).await?;
                    }
                    board.submit("a", 7.0, Policy::Sum).await?;
                    assert_eq!(board.at(&current).len().await?, 1);
                    let last = current.end().expect("it ends").as_millisecond()
                        + RETAIN.as_millis() as i64;
                    let mine = format!("walk:*{{{name}}}:*:{}*", current.label());
                    let written = expiries(&store, &mine).await?;
                    assert!(!written.is_empty());
                    for (key, at) in written {
                        assert_eq!(at, last, "{key}");
                    }
                }
                looked += 1;
            }
            for (key, at) in expiries(&store, "walk:*").await? {
                assert!(at > now.as_millisecond(), "{key} has no end");
            }
            number += 1;
            day = day.checked_add(step.days())?;
        }
        // Nothing is left when the last of them is over.
        store.advance(Duration::from_secs(40 * 86400))?;
        assert!(store.scan("walk:*").await?.is_empty());
    }
    println!("{looked} moments of every {step}. day from 2018 to 2040 in four zones");
    Ok(())
}

/// A server that is killed while it writes, and comes back with what its log has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_a_server_killed_between_two_steps_leaves_no_key_without_expiry() -> anyhow::Result<()>
{
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::builder(kind)
            .config("appendonly", "yes")
            .config("appendfsync", "always")
            .start()
            .await?;
        let store = Store::connect(&server.url()).await?;
        let mut found = 0;
        for round in 0..scale(3, "LEADERBOARD_CRASHES") {
            let mut tasks = tokio::task::JoinSet::new();
            let done = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
            for n in 0..12 {
                let board = Leaderboard::builder(&store, "crash", &format!("b{n}"))
                    .ties(ties(n))
                    .period(Period::Day, TimeZone::UTC, RETAIN)
                    .build()?;
                let done = done.clone();
                tasks.spawn(async move {
                    // Each submission creates the board's keys again: that is where an expiry could be missing.
                    for m in 0.. {
                        let member = format!("{round}-{m}");
                        if board
                            .submit(&member, f64::from(m % 900), Policy::Last)
                            .await
                            .is_err()
                        {
                            return;
                        }
                        if let Ok(day) = board.current().await {
                            let _ = board.at(&day).remove(&member).await;
                        }
                        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
            let busy = redstart_testkit::eventually(Duration::from_secs(30), async || {
                done.load(std::sync::atomic::Ordering::Relaxed) > 200
            });
            assert!(busy.await);
            server.kill9();
            tasks.shutdown().await;
            server.restart().await?;
            let up = redstart_testkit::eventually(Duration::from_secs(30), async || {
                store.time().await.is_ok()
            });
            assert!(up.await);
            let day = Period::Day.at(
                Timestamp::from_microsecond(store.time().await?.as_micros() as i64)?,
                &TimeZone::UTC,
            )?;
            let last = day.end().expect("it ends").as_millisecond() + RETAIN.as_millis() as i64;
            for (key, at) in expiries(&store, "crash:*").await? {
                assert!(at > 0 && at <= last, "{kind:?}: {key} expires at {at}");
                found += 1;
            }
        }
        assert!(found > 0, "{kind:?}: no key was looked at");
    }
    Ok(())
}
