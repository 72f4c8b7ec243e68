//! Leaderboards and weighted choice.

use std::{collections::HashMap, time::Duration};

use jiff::tz::TimeZone;
use redstart::ranking::{
    Leaderboard, Period, Policy, Replacement, ShardedLeaderboard, Submitted, Ties, WeightedChoice,
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
    let top: Vec<(u64, String)> = board
        .top(64)
        .await?
        .into_iter()
        .map(|entry| (entry.rank, entry.member))
        .collect();
    stage.claim(
        top == order,
        "64 tied players are ranked in the order of their submissions",
    )?;
    // The last of them moves to the top, so that those in the middle keep their neighbours.
    let best = board.submit(&top[63].1, 900.0, Policy::Best).await?;
    stage.claim(
        best.rank == 1 && best.previous == Some(500.0),
        "a submission returns the new rank and the previous score",
    )?;
    let around: Vec<String> = board
        .around(&top[30].1, 2)
        .await?
        .into_iter()
        .map(|entry| entry.member)
        .collect();
    let expected: Vec<&String> = top[28..=32].iter().map(|(_, member)| member).collect();
    stage.claim(
        around.iter().eq(expected),
        "a player is listed between its neighbours",
    )?;
    stage.did(131);
    stage.show(
        "64 players tied at once and are ranked by submission; a lower score changed nothing",
    );
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
            .rank("player-3")
            .await?
            .is_some_and(|e| e.score == 50.0),
        "sums add up",
    )?;
    let last_week = board.period_at(week.start() - jiff::SignedDuration::from_hours(1))?;
    let late = board
        .at(&last_week)
        .submit("player-3", 1.0, Policy::Sum)
        .await?;
    stage.claim(
        late == Submitted::Closed,
        "a closed week takes no submission",
    )?;
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
    stage.claim(expiries == 1, "the closed week has no key")?;
    let new_year = board.period_at("2027-01-01T12:00:00Z".parse()?)?;
    stage.claim(
        new_year.label() == "2026-W53",
        "1 January 2027 is in week 53 of 2026",
    )?;
    stage.did(51);
    stage.show(format!(
        "week {} is counted by the server's clock and expires on its own; last week is closed",
        week.label()
    ));
    Ok(())
}

async fn sharded_leaderboard(stage: &mut Stage) -> anyhow::Result<()> {
    let board = ShardedLeaderboard::builder(stage.store(), stage.namespace(), "world")
        .shards(32)
        .build()?;
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
    let page = board.slice(2345, 20).await?;
    stage.claim(
        page.len() == 20 && page[0].rank == 2341,
        "a slice from the middle is exact",
    )?;
    let around = board.around(&members[1234], 3).await?;
    stage.claim(
        around.iter().any(|entry| entry.member == members[1234]),
        "neighbours are found",
    )?;
    stage.did(5007);
    stage.show("5,000 players on 32 shards, ten per score: ranks, slices and neighbours are exact");
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
    stage.claim(share("gone") == 0.0, "a removed member is not drawn")?;
    let all = loot.pick_many(10, Replacement::Without).await?;
    stage.claim(
        all.len() == 4,
        "without replacement each member is drawn once",
    )?;
    stage.did(20_010);
    stage.show(format!(
        "20,000 draws: {:.1} % for a member with 70 % of the weight",
        share("common") * 100.0
    ));
    Ok(())
}
