//! Different visitors by day, week and month, in at most 12 KB per day.
//!
//! Run it with `cargo run -p redstart-examples --example visitors`.

use std::time::Duration;

use jiff::{ToSpan as _, civil::date};
use redstart::counting::{DaySpan, Estimate, Keep, Uniques};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    let visitors = Uniques::builder(&store, "site", "visitors", Keep::Forever)
        .keep_rolled_up(Keep::For(Duration::from_secs(400 * 24 * 3600)))
        .build()?;

    // A thousand regulars come every day; every day brings five hundred others, once.
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
        "Monday, exactly 1,500",
        visitors.count("home", &DaySpan::Day(monday)).await?,
    );
    let week = DaySpan::Week(monday);
    show(
        "the week, exactly 4,500",
        visitors.count("home", &week).await?,
    );
    // The week began in December and ends in January.
    show(
        "December, exactly 3,000",
        visitors.count("home", &DaySpan::Month(monday)).await?,
    );
    let weekend = DaySpan::Range(monday + 5.days()..=monday + 6.days());
    show(
        "the weekend, exactly 2,000",
        visitors.count("home", &weekend).await?,
    );
    show(
        "the week, rolled up",
        visitors.roll_up("home", &week).await?,
    );
    Ok(())
}
