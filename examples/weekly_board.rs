//! A game's boards: a weekly one that expires, and a global one over many shards.
//!
//! Run it with `cargo run -p redstart-examples --example weekly_board`.

use std::time::Duration;

use jiff::tz::TimeZone;
use redstart::ranking::{Leaderboard, Period, Policy, ShardedLeaderboard, Ties};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    // The player who reached a score first is ahead. A week is kept for eight days after its end.
    let weekly = Leaderboard::builder(&store, "game", "weekly")
        .ties(Ties::EarliestFirst {
            max_points: 1_000_000,
        })
        .period(
            Period::Week,
            TimeZone::UTC,
            Duration::from_secs(8 * 24 * 3600),
        )
        .build()?;
    let world = ShardedLeaderboard::new(&store, "game", "world")?;

    let players = ["ann", "bob", "cid", "dee", "eve", "fay", "gus", "hal"];
    for round in 0..3u32 {
        for (n, player) in (0..).zip(players) {
            let points = f64::from((n * 37 + round * 53) % 100) * 10.0;
            let placed = weekly.submit(player, points, Policy::Best).await?;
            world.submit(player, points, Policy::Sum).await?;
            if round == 2 {
                println!(
                    "{player} scores {points:>3}: best {:>3}, rank {} this week",
                    placed.score, placed.rank
                );
            }
        }
    }

    let week = weekly.current().await?;
    println!("\n{} ends {:?}", week.label(), week.end());
    for entry in weekly.top(3).await? {
        println!("{:>3}. {:<4} {:>5}", entry.rank, entry.member, entry.score);
    }
    println!("\naround dee this week");
    for entry in weekly.around("dee", 1).await? {
        println!("{:>3}. {:<4} {:>5}", entry.rank, entry.member, entry.score);
    }
    println!("\nglobal board, sum of all points");
    for entry in world.top(3).await? {
        println!("{:>3}. {:<4} {:>5}", entry.rank, entry.member, entry.score);
    }
    if let Some(entry) = world.rank("hal").await? {
        println!("hal is ranked {} of {}", entry.rank, world.len().await?);
    }
    Ok(())
}
