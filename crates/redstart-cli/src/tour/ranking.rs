//! Leaderboards and weighted choice.

use std::{collections::HashMap, time::Duration};

use jiff::tz::TimeZone;
use redstart::ranking::{
    Leaderboard, Order, Period, Policy, ShardedLeaderboard, Ties, WeightedChoice,
    leaderboard::Submitted, weighted::Replacement,
};

use super::{Family, Stage, Step};

pub(crate) const FAMILY: Family = Family {
    name: "ranking",
    steps: &[
        Step {
            pattern: "leaderboard",
            run: |stage| Box::pin(leaderboard(stage)),
        },
        Step {
            pattern: "period_leaderboard",
            run: |stage| Box::pin(period_leaderboard(stage)),
        },
        Step {
            pattern: "sharded_leaderboard",
            run: |stage| Box::pin(sharded_leaderboard(stage)),
        },
        Step {
            pattern: "weighted_choice",
            run: |stage| Box::pin(weighted_choice(stage)),
        },
    ],
};

async fn leaderboard(stage: &mut Stage) -> anyhow::Result<()> {
    let board = Leaderboard::builder(stage.store(), stage.namespace(), "all-time")
        .ties(Ties::EarliestFirst {
            max_points: 1_000_000,
        })
        .build()?;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..64 {
        let board = board.clone();
        tasks.spawn(async move {
            let member = format!("player-{n}");
            let placed = board.submit(&member, 500.0, Policy::Best).await?;
            board.submit(&member, 100.0, Policy::Best).await?;
            Ok::<_, redstart::Error>((placed.rank, member))
        });
    }
    let mut order = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        order.push(ended??);
    }
    order.sort();
    let all = board.current().await?;
    let top: Vec<(u64, String)> = board
        .top(&all, 64)
        .await?
        .into_iter()
        .map(|entry| (entry.rank, entry.member))
        .collect();
    stage.claim(
        top == order,
        "64 who tie stand in the order in which they came",
    )?;
    let best = board.submit("player-7", 900.0, Policy::Best).await?;
    stage.claim(
        best.rank == 1 && best.previous == Some(500.0),
        "a submission returns its rank",
    )?;
    let around = board.around(&all, &top[30].1, 2).await?;
    stage.claim(around.len() == 5, "a member is seen with its neighbours")?;
    stage.did(131);
    stage.show("64 players tied at once; each stands where it came in, and the lower score changed nothing");
    Ok(())
}

async fn period_leaderboard(stage: &mut Stage) -> anyhow::Result<()> {
    let retain = Duration::from_secs(8 * 86400);
    let board = Leaderboard::builder(stage.store(), stage.namespace(), "weekly")
        .period(Period::Week, TimeZone::UTC, retain)
        .build()?;
    let week = board.current().await?;
    for n in 0..50 {
        board
            .submit(&format!("player-{}", n % 10), 10.0, Policy::Sum)
            .await?;
    }
    stage.claim(
        board
            .rank(&week, "player-3")
            .await?
            .is_some_and(|e| e.score == 50.0),
        "sums add up",
    )?;
    let last_week = board.period_at(week.start() - jiff::SignedDuration::from_hours(1))?;
    let late = board
        .submit_to(&last_week, "player-3", 1.0, Policy::Sum)
        .await?;
    stage.claim(late == Submitted::Closed, "a closed week takes nothing")?;
    let mut expiries = 0;
    for key in stage
        .store()
        .scan(&format!("{}:*", stage.namespace()))
        .await?
    {
        let ttl: i64 = stage
            .store()
            .query(redstart::redis::cmd("PTTL").arg(&key))
            .await?;
        stage.claim(ttl > 0, "every key of a period expires")?;
        expiries += 1;
    }
    stage.claim(expiries == 1, "the closed week left no key")?;
    let new_year = board.period_at("2027-01-01T12:00:00Z".parse()?)?;
    stage.claim(
        new_year.label() == "2026-W53",
        "1 January 2027 is in week 53 of 2026",
    )?;
    stage.did(51);
    stage.show(format!(
        "week {} counts by the server's clock and leaves by itself; last week is closed",
        week.label()
    ));
    Ok(())
}

async fn sharded_leaderboard(stage: &mut Stage) -> anyhow::Result<()> {
    let board = ShardedLeaderboard::new(
        stage.store(),
        stage.namespace(),
        "world",
        32,
        Order::HighestFirst,
    )?;
    let members: Vec<String> = (0..5000).map(|n| format!("player-{n}")).collect();
    let scores = members
        .iter()
        .zip(0..)
        .map(|(member, n)| (member.as_str(), f64::from(n % 500)));
    board.submit_many(scores, Policy::Last).await?;
    // Ten players share each of 500 scores, so the ranks are known.
    for n in [0, 77, 499, 4999, 2500] {
        let entry = board.rank(&members[n]).await?;
        let expected = (499 - n as u64 % 500) * 10 + 1;
        stage.claim(
            entry.is_some_and(|entry| entry.rank == expected),
            "the global rank is exact",
        )?;
    }
    let page = board.page(2345, 20).await?;
    stage.claim(
        page.len() == 20 && page[0].rank == 2341,
        "a page from the middle is exact",
    )?;
    let around = board.around(&members[1234], 3).await?;
    stage.claim(
        around.iter().any(|entry| entry.member == members[1234]),
        "neighbours are found",
    )?;
    stage.did(5007);
    stage.show(
        "5,000 players over 32 shards with ten to a score: ranks, pages and neighbours are exact",
    );
    Ok(())
}

async fn weighted_choice(stage: &mut Stage) -> anyhow::Result<()> {
    let loot = WeightedChoice::new(stage.store(), stage.namespace(), "loot")?;
    for (item, weight) in [
        ("common", 700),
        ("rare", 250),
        ("epic", 49),
        ("gone", 5000),
        ("legend", 1),
    ] {
        loot.set(item, weight).await?;
    }
    loot.remove("gone").await?;
    let mut drawn: HashMap<String, u32> = HashMap::new();
    for _ in 0..20 {
        for item in loot.pick_many(1000, Replacement::With).await? {
            *drawn.entry(item).or_default() += 1;
        }
    }
    let share = |item: &str| f64::from(drawn.get(item).copied().unwrap_or(0)) / 20_000.0;
    // Six standard deviations at 20,000 draws.
    stage.claim(
        (share("common") - 0.70).abs() < 0.02,
        "70 % of the draws are common",
    )?;
    stage.claim((share("rare") - 0.25).abs() < 0.02, "25 % are rare")?;
    stage.claim(share("gone") == 0.0, "what was removed is not drawn")?;
    let all = loot.pick_many(10, Replacement::Without).await?;
    stage.claim(
        all.len() == 4,
        "without replacement everybody is drawn once",
    )?;
    stage.did(20_010);
    stage.show(format!(
        "20,000 draws: {:.1} % for a weight of 70 %",
        share("common") * 100.0
    ));
    Ok(())
}
