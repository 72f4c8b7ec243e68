//! A month of check-ins printed as a calendar, with streaks.
//!
//! Run it with `cargo run -p redstart-examples --example check_in_calendar`.

use jiff::{ToSpan as _, civil::date};
use redstart::counting::{CheckIns, Keep};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    let check_ins = CheckIns::new(&store, "app", "visits", Keep::Forever)?;

    // Across the end of February in a leap year, with two days missing.
    let first = date(2028, 2, 1);
    let missed = [date(2028, 2, 9), date(2028, 2, 20)];
    for day in first
        .series(1.day())
        .take_while(|day| *day <= date(2028, 3, 2))
    {
        if !missed.contains(&day) {
            check_ins.mark("ann", day).await?;
        }
    }
    println!(
        "5 February marked again: new? {}",
        check_ins.mark("ann", date(2028, 2, 5)).await?
    );

    let february = check_ins.month("ann", first).await?;
    println!("\n{february}");
    println!("{} of {} days", february.count(), february.days().len());

    let streaks = check_ins.streaks("ann", date(2028, 3, 2)).await?;
    println!(
        "on 2 March: current streak {} days, longest {}",
        streaks.current, streaks.longest
    );
    Ok(())
}
