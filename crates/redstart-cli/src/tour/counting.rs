//! Counters, unique visitors, check-ins, activity, arrays.

use std::time::Duration;

use jiff::{
    ToSpan as _,
    civil::{Date, date},
};
use redstart::{
    counting::{Activity, CheckIns, Counter, DaySpan, Keep, Uniques},
    storage::FixedArray,
};

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "counting and storage",
    steps: &[
        Step {
            pattern: "counter",
            run: |stage| Box::pin(counter(stage)),
        },
        Step {
            pattern: "unique_visitors",
            run: |stage| Box::pin(unique_visitors(stage)),
        },
        Step {
            pattern: "check_ins",
            run: |stage| Box::pin(check_ins(stage)),
        },
        Step {
            pattern: "activity",
            run: |stage| Box::pin(activity(stage)),
        },
        Step {
            pattern: "array",
            run: |stage| Box::pin(array(stage)),
        },
    ],
};

/// A day that is within any retention the steps use.
fn today() -> Date {
    jiff::Timestamp::now()
        .to_zoned(jiff::tz::TimeZone::UTC)
        .date()
}

async fn counter(stage: &mut Stage) -> anyhow::Result<()> {
    let keep = Keep::For(Duration::from_secs(600));
    let clicks = Counter::new(stage.store(), stage.namespace(), "clicks", keep)?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let clicks = clicks.clone();
        tasks.spawn(async move {
            for _ in 0..50 {
                clicks.add("banner", 1).await?;
            }
            Ok::<(), redstart::Error>(())
        });
    }
    let mut arrived = 0;
    while let Some(ended) = tasks.join_next().await {
        ended??;
        // Drained while others count, and drained again as after a crash of the receiver.
        if let Some(drained) = clicks.drain("banner").await? {
            let again = clicks.drain("banner").await?;
            stage.claim(
                again.as_ref() == Some(&drained),
                "a drained count is handed out again until it is acknowledged",
            )?;
            clicks.ack("banner", &drained.id).await?;
            arrived += drained.count;
        }
    }
    let left = clicks.take("banner").await?;
    stage.claim(
        arrived + left == 1000,
        "acknowledged counts plus the rest equal what was counted",
    )?;
    stage.did(1060);
    stage.show(
        "20 tasks counted to 1000 while counts were drained twice and acknowledged: none lost",
    );
    Ok(())
}

async fn unique_visitors(stage: &mut Stage) -> anyhow::Result<()> {
    let visitors = Uniques::new(
        stage.store(),
        stage.namespace(),
        "visitors",
        Keep::For(Duration::from_secs(90 * 86400)),
    )?;
    let monday = {
        let day = today();
        day - i64::from(day.weekday().to_monday_zero_offset()).days()
    };
    // 2,000 visitors per day; half of them come every day.
    for day in 0..7 {
        let ids: Vec<String> = (0..1000)
            .map(|n| format!("regular-{n}"))
            .chain((0..1000).map(|n| format!("guest-{day}-{n}")))
            .collect();
        visitors.add("home", monday + day.days(), &ids).await?;
    }
    let daily = visitors.count("home", &DaySpan::Day(monday)).await?;
    let week = DaySpan::Week(monday);
    let weekly = visitors.count("home", &week).await?;
    let near = |estimate: u64, truth: u64| estimate.abs_diff(truth) as f64 <= truth as f64 * 0.04;
    stage.claim(near(daily.count, 2000), "a day's estimate is near 2,000")?;
    stage.claim(
        near(weekly.count, 8000),
        "a week counts each visitor once: near 8,000, not 14,000",
    )?;
    let first = visitors.roll_up("home", &week).await?;
    let second = visitors.roll_up("home", &week).await?;
    stage.claim(
        first == second && first == weekly,
        "rolling up twice changes nothing",
    )?;
    stage.did(14_000);
    stage.show(format!(
        "14,000 visits by 8,000 people: estimated {}, in 12 KB",
        weekly.count
    ));
    Ok(())
}

async fn check_ins(stage: &mut Stage) -> anyhow::Result<()> {
    let check_ins = CheckIns::new(stage.store(), stage.namespace(), "visits", Keep::Forever)?;
    let first = date(2027, 12, 27);
    for day in 0..66 {
        stage.claim(
            check_ins.mark("ann", first + day.days()).await?,
            "a new day counts",
        )?;
    }
    stage.claim(!check_ins.mark("ann", first).await?, "a day counts once")?;
    let leap = date(2028, 3, 1);
    let streaks = check_ins.streaks("ann", leap).await?;
    stage.claim(
        streaks.current == 66,
        "a streak continues across New Year and the leap day",
    )?;
    check_ins.unmark("ann", date(2028, 2, 29)).await?;
    let streaks = check_ins.streaks("ann", leap).await?;
    stage.claim(
        (streaks.current, streaks.longest) == (1, 64),
        "a missing day ends a streak",
    )?;
    let month = check_ins.month("ann", date(2028, 1, 15)).await?;
    stage.claim(month.count() == 31, "a month lists its marked days")?;
    stage.did(70);
    stage.show("a streak of 66 days across New Year and the leap day, in 92 bytes");
    Ok(())
}

async fn activity(stage: &mut Stage) -> anyhow::Result<()> {
    let keep = Keep::For(Duration::from_secs(60 * 86400));
    let active = Activity::new(stage.store(), stage.namespace(), "active", 10_000, keep)?;
    let (monday, tuesday) = (today() - 1.day(), today());
    let evens: Vec<u32> = (0..10_000).step_by(2).collect();
    let threes: Vec<u32> = (0..10_000).step_by(3).collect();
    active.mark("app", monday, &evens).await?;
    active.mark("app", tuesday, &threes).await?;
    stage.claim(active.daily("app", monday).await? == 5000, "a day is exact")?;
    stage.claim(
        active.over("app", monday..=tuesday).await? == 6667,
        "two days together are exact",
    )?;
    stage.claim(
        active.retained("app", monday, tuesday).await? == 1667,
        "the number of returning users is exact",
    )?;
    let stray = active.mark("app", monday, &[4_000_000_000]).await;
    stage.claim(
        stray.is_err_and(|error| error.is_config()),
        "an id of four billion is refused before it takes 512 MB on the server",
    )?;
    stage.did(8334);
    stage.show("5,000 and 3,334 active users, 1,667 on both days: exact, in 1.25 KB per day");
    Ok(())
}

async fn array(stage: &mut Stage) -> anyhow::Result<()> {
    let seats = FixedArray::<u64>::new(stage.store(), stage.namespace(), "stalls", 1000)?;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..8u32 {
        let seats = seats.clone();
        tasks.spawn(async move {
            for seat in (writer..800).step_by(8) {
                seats.set(seat, &(u64::from(seat) << 32)).await?;
            }
            Ok::<(), redstart::Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let all = seats.range(0..1000).await?;
    let right = all
        .iter()
        .zip(0u64..)
        .all(|(record, seat)| *record == seat << 32);
    stage.claim(
        all.len() == 800 && right,
        "eight writers of different records do not interfere",
    )?;
    seats.set(900, &7).await?;
    stage.claim(seats.get(850).await? == Some(0), "a gap is all zeros")?;
    stage.claim(
        seats.set(1000, &1).await.is_err(),
        "an index beyond the capacity is refused",
    )?;
    stage.did(803);
    stage.show("8 concurrent writers filled 800 records of one string; a stray index was refused");
    Ok(())
}
