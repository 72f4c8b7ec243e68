//! A game's boards: this week's, which ends, and the world's, over many shards.

use std::time::Duration;

use jiff::tz::TimeZone;
use redstart::ranking::{Leaderboard, Order, Period, Policy, ShardedLeaderboard, Ties};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = redstart_examples::store().await?;
    // Whoever reached a score first is ahead. A week's board stays for eight days after its end.
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
    let world = ShardedLeaderboard::new(&store, "game", "world", 16, Order::HighestFirst)?;

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
    for entry in weekly.top(&week, 3).await? {
        println!("{:>3}. {:<4} {:>5}", entry.rank, entry.member, entry.score);
    }
    println!("\naround dee, this week");
    for entry in weekly.around(&week, "dee", 1).await? {
        println!("{:>3}. {:<4} {:>5}", entry.rank, entry.member, entry.score);
    }
    println!("\nthe world, all points");
    for entry in world.top(3).await? {
        println!("{:>3}. {:<4} {:>5}", entry.rank, entry.member, entry.score);
    }
    if let Some(entry) = world.rank("hal").await? {
        println!("hal is number {} of {}", entry.rank, world.len().await?);
    }
    Ok(())
}
