//! Today, by the server's clock.

use std::time::Duration;

use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use redstart::{
    Store,
    counting::{Activity, CheckIns, DaySpan, Keep, Uniques},
};
use redstart_testkit::{Backend, matrix};

matrix! {
    async fn today_is_the_servers_day_in_the_time_zone(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let visitors = Uniques::new(&store, backend.namespace(), "v", Keep::Forever)?;
        let active = Activity::new(&store, backend.namespace(), "a", 100, Keep::Forever)?;
        let check_ins = CheckIns::new(&store, backend.namespace(), "c", Keep::Forever)?;
        let zone = TimeZone::get("Pacific/Kiritimati")?;
        // On the embedded engine the clock walks on; nobody's own clock may decide.
        let days = if backend.is_embedded() { 4 } else { 1 };
        for _ in 0..days {
            let server = |time: Duration| Timestamp::from_microsecond(time.as_micros() as i64);
            let before = server(store.time().await?)?;
            let day = visitors.today().await?;
            visitors.add_today("m", ["ann"]).await?;
            active.mark_today("m", &[7]).await?;
            check_ins.mark_today("ann", &zone).await?;
            let there = check_ins.today(&zone).await?;
            let after = server(store.time().await?)?;
            if before.to_zoned(TimeZone::UTC).date() == after.to_zoned(TimeZone::UTC).date() {
                assert_eq!(day, before.to_zoned(TimeZone::UTC).date());
                assert_eq!(visitors.count("m", &DaySpan::Day(day)).await?.count, 1);
                assert_eq!(active.daily("m", day).await?, 1);
            }
            if before.to_zoned(zone.clone()).date() == after.to_zoned(zone.clone()).date() {
                assert_eq!(there, before.to_zoned(zone.clone()).date());
                assert!(check_ins.checked("ann", there).await?);
            }
            if backend.is_embedded() {
                assert_eq!(visitors.count("m", &DaySpan::Day(day + 1.day())).await?.count, 0);
                store.advance(Duration::from_secs(86400))?;
            }
        }
        Ok(())
    }
}
