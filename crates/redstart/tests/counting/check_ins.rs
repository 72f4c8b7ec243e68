use std::{collections::BTreeSet, time::Duration};

use jiff::{
    ToSpan as _,
    civil::{Date, date},
};
use proptest::prelude::*;
use redstart::{
    Store,
    counting::{CheckIns, Keep},
};
use redstart_testkit::{Backend, matrix, scale};

/// Streaks the slow way.
fn model(days: &BTreeSet<Date>, today: Date) -> (u32, u32) {
    let run_to = |mut day: Date| {
        let mut run = 0;
        while days.contains(&day) {
            run += 1;
            day -= 1.day();
        }
        run
    };
    let current = match run_to(today) {
        0 => run_to(today - 1.day()),
        run => run,
    };
    let longest = days
        .iter()
        .filter(|day| **day <= today)
        .map(|day| run_to(*day))
        .max()
        .unwrap_or(0);
    (current, longest)
}

matrix! {
    async fn streaks_run_over_the_ends_of_months_years_and_leap_days(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let check_ins = CheckIns::new(&store, backend.namespace(), "visits", Keep::Forever)?;
        for (user, first, length) in [
            ("year", date(2026, 12, 25), 20),
            ("leap", date(2028, 2, 27), 4),
            ("no-leap", date(2027, 2, 27), 3),
            ("month", date(2026, 4, 29), 5),
        ] {
            for day in 0..length {
                assert!(check_ins.mark(user, first + day.days()).await?);
            }
            let last = first + (length - 1).days();
            for (today, current) in [(last, length), (last + 1.day(), length), (last + 2.days(), 0)] {
                let streaks = check_ins.streaks(user, today).await?;
                assert_eq!((i64::from(streaks.current), i64::from(streaks.longest)), (current, length), "{user}");
            }
        }
        assert_eq!(check_ins.streaks("nobody", date(2026, 1, 1)).await?.longest, 0);
        Ok(())
    }

    async fn random_days_equal_the_model(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let check_ins = CheckIns::new(&store, backend.namespace(), "visits", Keep::Forever)?;
        for user in 0..scale(4, "CHECK_IN_USERS") {
            let user = format!("u{user}");
            // Over two year ends and a leap day; every third day is missing.
            let epoch = date(2027, 6, 1);
            let offsets = (0..400i64).filter(|_| !rand::random_ratio(1, 3));
            let days: BTreeSet<Date> = offsets
                .map(|n| epoch + (2 * n - 20 + i64::from(rand::random_range(0..2u8))).days())
                .collect();
            for day in &days {
                check_ins.mark(&user, *day).await?;
            }
            for offset in (0..800).step_by(37) {
                let today = epoch + offset.days();
                let streaks = check_ins.streaks(&user, today).await?;
                assert_eq!((streaks.current, streaks.longest), model(&days, today), "{user} on {today}");
                let in_month = days.iter().filter(|d| d.first_of_month() == today.first_of_month()).count();
                assert_eq!(check_ins.month(&user, today).await?.count() as usize, in_month);
            }
        }
        Ok(())
    }

    async fn a_day_is_marked_once_and_can_be_unmarked(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let check_ins = CheckIns::new(&store, backend.namespace(), "visits", Keep::For(Duration::from_secs(86400)))?;
        let year = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).year();
        let day = date(year, 12, 31);
        assert!(check_ins.mark("u", day).await?);
        assert!(!check_ins.mark("u", day).await?);
        assert!(check_ins.checked("u", day).await?);
        let month = check_ins.month("u", day).await?;
        assert_eq!((month.count(), month.days().len(), month.days()[30]), (1, 31, true));
        for name in store.scan(&format!("{}:*", backend.namespace())).await? {
            assert!(store.query::<i64>(redis::cmd("PTTL").arg(name)).await? > 0);
        }
        assert!(check_ins.unmark("u", day).await?);
        assert!(!check_ins.unmark("u", day).await?);
        assert!(!check_ins.checked("u", day).await?);
        assert!(check_ins.mark("u", date(1999, 12, 31)).await.unwrap_err().is_config());
        assert!(check_ins.mark("", day).await.unwrap_err().is_config());
        // A day that does not exist is no date: nothing could be marked.
        assert!(Date::new(2027, 2, 29).is_err() && Date::new(2027, 4, 31).is_err());
        Ok(())
    }
}

#[test]
fn streaks_and_months_equal_the_model() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = runtime
        .block_on(Store::connect("memory://?cluster_strict=1"))
        .expect("a store");
    let users = std::cell::Cell::new(0);
    let days = prop::collection::btree_set(0..800i64, 0..400);
    proptest!(ProptestConfig::with_cases(60), |(offsets in days, today in 0..820i64)| {
        users.set(users.get() + 1);
        let user = format!("u{}", users.get());
        let epoch = date(2027, 6, 1);
        let days: BTreeSet<Date> = offsets.iter().map(|offset| epoch + offset.days()).collect();
        let today = epoch + today.days();
        let check_ins = CheckIns::new(&store, "model", "visits", Keep::Forever).expect("check-ins");
        let (streaks, month) = runtime.block_on(async {
            for day in &days {
                check_ins.mark(&user, *day).await?;
            }
            Ok::<_, redstart::Error>((check_ins.streaks(&user, today).await?, check_ins.month(&user, today).await?))
        }).expect("the embedded engine answers");
        prop_assert_eq!((streaks.current, streaks.longest), model(&days, today));
        let in_month = days.iter().filter(|d| d.first_of_month() == today.first_of_month()).count();
        prop_assert_eq!(month.count() as usize, in_month);
    });
}

#[tokio::test]
async fn a_month_prints_as_a_calendar() -> anyhow::Result<()> {
    let store = Store::connect("memory://").await?;
    let check_ins = CheckIns::new(&store, "calendar", "visits", Keep::Forever)?;
    for day in [1, 2, 30] {
        check_ins.mark("u", date(2026, 11, day)).await?;
    }
    let drawn = check_ins.month("u", date(2026, 11, 15)).await?.to_string();
    let lines: Vec<&str> = drawn.lines().collect();
    assert!(lines[0].contains("2026-11"));
    assert!(lines[2].ends_with("[ 1]"), "{drawn}");
    assert!(lines[3].starts_with("[ 2]  3 "), "{drawn}");
    assert!(lines[7].starts_with("[30]"), "{drawn}");
    Ok(())
}
