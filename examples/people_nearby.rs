//! People nearby by rounded distance: no caller learns a position.
//!
//! Run it with `cargo run -p redstart-examples --example people_nearby`.

use std::time::Duration;

use redstart::location::{Places, Position};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    let people = Places::builder(&store, "app", "people")
        .stale_after(Duration::from_secs(15 * 60))
        .build()?
        .private(500.0)?;

    for (name, longitude, latitude) in [
        ("ann", 13.3777, 52.5163),
        ("bob", 13.3690, 52.5186),
        ("cid", 13.4050, 52.5200),
        ("dee", 13.4132, 52.5219),
        ("eve", 13.0645, 52.3906),
    ] {
        people
            .put(name, Position::new(longitude, latitude)?)
            .await?;
    }

    for radius in [1_000.0, 5_000.0, 50_000.0] {
        println!("within {} km of ann:", radius / 1000.0);
        for near in people.nearby("ann", radius, 10).await? {
            println!(
                "  {} is at most {} km away",
                near.member,
                near.within / 1000.0
            );
        }
    }
    match Position::new(0.0, 89.0) {
        Err(error) => println!("a position at 89° north: {error}"),
        Ok(_) => anyhow::bail!("89° north cannot be stored"),
    }
    if store.is_embedded() {
        store.advance(Duration::from_secs(15 * 60))?;
        let left = people.nearby("ann", 50_000.0, 10).await?;
        println!("15 minutes later: {} people", left.len());
    }
    Ok(())
}
