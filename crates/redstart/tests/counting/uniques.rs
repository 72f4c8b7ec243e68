use std::time::Duration;

use jiff::{ToSpan as _, civil::date};
use redstart::{
    Store,
    counting::{DaySpan, Estimate, Keep, Recorded, Uniques},
};
use redstart_testkit::{Backend, matrix, scale};

matrix! {
    async fn a_visitor_counts_once_in_every_period(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let visitors = Uniques::new(&store, backend.namespace(), "v", Keep::Forever)?;
        let first = date(2026, 12, 28);
        for day in 0..7 {
            let ids = ["every-day".to_owned(), format!("only-{day}")];
            assert_eq!(visitors.add("m", first + day.days(), &ids).await?, Recorded::New);
            assert_eq!(visitors.add("m", first + day.days(), &ids).await?, Recorded::Known);
        }
        let count = async |span| visitors.count("m", &span).await.map(|estimate| estimate.count);
        assert_eq!(count(DaySpan::Day(first)).await?, 2);
        assert_eq!(count(DaySpan::Week(date(2027, 1, 3))).await?, 8);
        assert_eq!(count(DaySpan::Month(date(2026, 12, 1))).await?, 5);
        assert_eq!(count(DaySpan::Month(date(2027, 1, 31))).await?, 4);
        assert_eq!(count(DaySpan::Range(first..=first + 1.day())).await?, 3);
        Ok(())
    }

    async fn rolling_up_is_idempotent_and_outlives_the_days(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let visitors = Uniques::new(&store, backend.namespace(), "v", Keep::Forever)?;
        let (day, week) = (date(2027, 1, 1), DaySpan::Week(date(2027, 1, 1)));
        visitors.add("m", day, ["a", "b"]).await?;
        visitors.add("m", day - 1.day(), ["b", "c"]).await?;
        for _ in 0..3 {
            assert_eq!(visitors.roll_up("m", &week).await?.count, 3);
        }
        // Late visitors are merged by the next roll-up, and counted even before it.
        visitors.add("m", day, ["d"]).await?;
        assert_eq!(visitors.count("m", &week).await?.count, 4);
        assert_eq!(visitors.roll_up("m", &week).await?.count, 4);
        let names = store.scan(&format!("{}:*", backend.namespace())).await?;
        for name in names.iter().filter(|name| name.contains(":d:")) {
            store.query::<()>(redis::cmd("DEL").arg(name)).await?;
        }
        assert!(names.iter().any(|name| name.ends_with(":w:2026-W53")), "{names:?}");
        assert_eq!(visitors.count("m", &week).await?.count, 4);
        assert_eq!(visitors.roll_up("m", &week).await?.count, 4);
        assert_eq!(visitors.roll_up("nobody", &week).await?.count, 0);
        Ok(())
    }

    async fn a_day_past_its_retention_is_not_revived(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let keep = Keep::For(Duration::from_secs(7 * 86400));
        let visitors = Uniques::new(&store, backend.namespace(), "v", keep)?;
        assert_eq!(visitors.add("m", date(2020, 1, 1), ["a"]).await?, Recorded::TooLate);
        assert_eq!(store.scan(&format!("{}:*", backend.namespace())).await?.len(), 0);
        let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        assert_eq!(visitors.add("m", today, ["a"]).await?, Recorded::New);
        for name in store.scan(&format!("{}:*", backend.namespace())).await? {
            assert!(store.query::<i64>(redis::cmd("PTTL").arg(name)).await? > 0);
        }
        Ok(())
    }

    async fn a_shorter_lifetime_does_not_cut_a_longer_one(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let open = |days: u64| Uniques::new(&store, backend.namespace(), "v", Keep::For(Duration::from_secs(days * 86400)));
        open(90)?.add_today("m", ["a"]).await?;
        open(7)?.add_today("m", ["b"]).await?;
        for name in store.scan(&format!("{}:*", backend.namespace())).await? {
            let left: i64 = store.query(redis::cmd("PTTL").arg(name)).await?;
            assert!(left > 80 * 86_400_000, "{left}");
        }
        Ok(())
    }

    async fn the_error_is_what_is_promised(backend: &Backend) -> anyhow::Result<()> {
        // A starved machine takes its time for thousands of ids in one call.
        let store = Store::builder(backend.url()).deadline(Duration::from_secs(30)).connect().await?;
        let visitors = Uniques::new(&store, backend.namespace(), "v", Keep::Forever)?;
        let (sets, size) = (scale(6, "UNIQUE_SETS"), scale(20_000, "UNIQUE_SIZE"));
        let day = date(2026, 11, 15);
        let mut squares = 0.0;
        for set in 0..sets {
            // The same visitors everywhere and always: the servers' hash is fixed, so the outcome is too.
            let ids: Vec<String> = (0..size).map(|n| format!("visitor-{set}-{n}")).collect();
            let metric = format!("m{set}");
            for chunk in ids.chunks(20_000) {
                visitors.add(&metric, day, chunk).await?;
            }
            let estimate = visitors.count(&metric, &DaySpan::Day(day)).await?;
            let off = estimate.count as f64 / size as f64 - 1.0;
            squares += off * off;
        }
        let rms = (squares / sets as f64).sqrt();
        // Few sets scatter more than many: then the bound is the promised error plus three of its own deviations.
        let bound = match (sets, size) {
            (100.., 100_000..) => 0.0085,
            _ => Estimate::STANDARD_ERROR * (1.0 + 3.0 / (2.0 * sets as f64).sqrt()),
        };
        assert!(rms <= bound, "rms {rms:.4} over {sets} sets of {size}, bound {bound:.4}");
        println!("rms error {:.3} % over {sets} sets of {size}", rms * 100.0);
        Ok(())
    }

    async fn bad_input_is_refused_before_the_network(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let visitors = Uniques::new(&store, backend.namespace(), "v", Keep::Forever)?;
        let day = date(2026, 11, 15);
        assert!(visitors.add("m", day, Vec::<String>::new()).await.unwrap_err().is_config());
        assert!(visitors.add("m", day, [""]).await.unwrap_err().is_config());
        assert!(visitors.add("m", day, [vec![0u8; 5000]]).await.unwrap_err().is_config());
        assert!(visitors.add("m", date(1999, 12, 31), ["a"]).await.unwrap_err().is_config());
        let backwards = DaySpan::Range(day..=day - 1.day());
        assert!(visitors.count("m", &backwards).await.unwrap_err().is_config());
        let long = DaySpan::Range(date(2010, 1, 1)..=day);
        assert!(visitors.count("m", &long).await.unwrap_err().is_config());
        assert!(visitors.roll_up("m", &DaySpan::Day(day)).await.unwrap_err().is_config());
        Ok(())
    }
}
