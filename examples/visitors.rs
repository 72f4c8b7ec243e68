//! Different visitors by day, week and month, in at most 12 KB a day.

use std::time::Duration;

use jiff::{ToSpan as _, civil::date};
use redstart::counting::{
    Keep, Uniques,
    uniques::{Estimate, Period},
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    let visitors = Uniques::new(&store, "site", Keep::Forever)?
        .keep_periods(Keep::For(Duration::from_secs(400 * 24 * 3600)))?;

    // A thousand regulars come every day, five hundred others only once.
    let monday = date(2026, 12, 28);
    for n in 0..7 {
        let regulars = (0..1000).map(|id| format!("regular-{id}"));
        let others = (0..500).map(|id| format!("once-{n}-{id}"));
        let ids: Vec<String> = regulars.chain(others).collect();
        visitors.add("home", monday + n.days(), &ids).await?;
    }

    let show = |what: &str, estimate: Estimate| {
        let (low, high) = estimate.bounds();
        println!("{what:<28} about {:>5}  ({low} to {high})", estimate.count);
    };
    show(
        "Monday, really 1,500",
        visitors.count("home", &Period::Day(monday)).await?,
    );
    let week = Period::Week(monday);
    show(
        "the week, really 4,500",
        visitors.count("home", &week).await?,
    );
    // The week began in December and ends in January.
    show(
        "December, really 3,000",
        visitors.count("home", &Period::Month(monday)).await?,
    );
    let weekend = Period::Range(monday + 5.days()..=monday + 6.days());
    show(
        "the weekend, really 2,000",
        visitors.count("home", &weekend).await?,
    );
    show(
        "the week, rolled up",
        visitors.roll_up("home", &week).await?,
    );
    Ok(())
}
