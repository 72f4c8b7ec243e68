//! Boards and weighted choice: ranks equal to those of a model.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use redstart::{
    Result,
    ranking::{
        BoardEntry, Leaderboard, Period, PeriodId, Policy, ShardedLeaderboard, WeightedChoice,
    },
};

use super::{Bed, Claims, Op, Workload, counters};

super::patterns! { "ranking":
    "leaderboard", "member", 0.7,
    "every member's rank is that of its best score", Board::whole;
    "period_leaderboard", "member", 0.7,
    "every member's score is the sum of its submissions in the period", Board::period;
    "sharded_leaderboard", "member", 0.7,
    "every member's global rank is that of its best score", Board::sharded;
    "weighted_choice", "member", 0.05,
    "members are drawn in proportion to their weights", Choice::open;
}

/// The shards of the sharded board. What an operation on so many costs is in the table of costs.
pub(crate) const SHARDS: u32 = 16;

enum Kind {
    Whole(Leaderboard),
    Period(Leaderboard, PeriodId),
    Sharded(ShardedLeaderboard),
}

struct Board {
    kind: Kind,
    /// The best score of each member, or the sum; 0 is nothing.
    scores: Vec<AtomicU64>,
    /// What submissions whose replies were lost may have added to that: the best of them, or their sum.
    unsure: Vec<AtomicU64>,
    claims: Claims,
}

impl Board {
    fn of(bed: &Bed, kind: Kind) -> Self {
        let members = bed.entities(1_000_000);
        Self {
            kind,
            scores: counters(members),
            unsure: counters(members),
            claims: Claims::default(),
        }
    }

    async fn whole(bed: &Bed) -> Result<Self> {
        let board = Leaderboard::new(&bed.store, &bed.namespace, "all-time")?;
        Ok(Self::of(bed, Kind::Whole(board)))
    }

    async fn period(bed: &Bed) -> Result<Self> {
        let retain = Duration::from_secs(40 * 86_400);
        let board = Leaderboard::builder(&bed.store, &bed.namespace, "monthly")
            .period(Period::Month, TimeZone::UTC, retain)
            .build()?;
        let period = board.current().await?;
        Ok(Self::of(bed, Kind::Period(board, period)))
    }

    async fn sharded(bed: &Bed) -> Result<Self> {
        let board = ShardedLeaderboard::builder(&bed.store, &bed.namespace, "world")
            .shards(SHARDS)
            .build()?;
        Ok(Self::of(bed, Kind::Sharded(board)))
    }

    async fn rank(&self, member: &str) -> Result<Option<BoardEntry>> {
        match &self.kind {
            Kind::Whole(board) => board.rank(member).await,
            Kind::Period(board, period) => board.at(period).rank(member).await,
            Kind::Sharded(board) => board.rank(member).await,
        }
    }

    async fn submit(&self, member: &str, points: u64) -> Result<()> {
        let points = points as f64;
        match &self.kind {
            Kind::Whole(board) => board.submit(member, points, Policy::Best).await.map(|_| ()),
            Kind::Period(board, period) => {
                let period = board.at(period);
                period.submit(member, points, Policy::Sum).await.map(|_| ())
            }
            Kind::Sharded(board) => board.submit(member, points, Policy::Best).await.map(|_| ()),
        }
    }
}

impl Workload for Board {
    async fn operate(&self, op: Op) -> Result<()> {
        let index = op.index(self.scores.len());
        let member = format!("e{index}");
        if !op.write {
            self.rank(&member).await?;
            return Ok(());
        }
        let points = op.random % 100_000 + 1;
        let submitted = self.submit(&member, points).await;
        match (&submitted, &self.kind) {
            (Err(_), Kind::Period(..)) => self.unsure[index].fetch_add(points, Ordering::Relaxed),
            (Err(_), _) => self.unsure[index].fetch_max(points, Ordering::Relaxed),
            (Ok(()), Kind::Period(..)) => self.scores[index].fetch_add(points, Ordering::Relaxed),
            (Ok(()), _) => self.scores[index].fetch_max(points, Ordering::Relaxed),
        };
        submitted
    }

    async fn finish(&self) -> Result<()> {
        let sums = matches!(self.kind, Kind::Period(..));
        let range = |(score, unsure): (&AtomicU64, &AtomicU64)| {
            let (score, unsure) = (
                score.load(Ordering::Relaxed),
                unsure.load(Ordering::Relaxed),
            );
            match sums {
                true => (score, score + unsure),
                false => (score, score.max(unsure)),
            }
        };
        let scores: Vec<(u64, u64)> = self.scores.iter().zip(&self.unsure).map(range).collect();
        let sorted = |of: fn(&(u64, u64)) -> u64| {
            let mut sorted: Vec<u64> = scores.iter().map(of).collect();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            sorted
        };
        let (lows, highs) = (sorted(|score| score.0), sorted(|score| score.1));
        // A sample, evenly spread, so that a large board is checked in reasonable time.
        let step = (scores.len() / 200).max(1);
        for (index, (low, high)) in scores.iter().copied().enumerate().step_by(step) {
            let entry = self.rank(&format!("e{index}")).await?;
            let right = match &entry {
                // A member that never submitted has no rank.
                None => low == 0,
                Some(entry) => {
                    let score = entry.score as u64;
                    // As many are better as come before the first of this score; equals share a rank.
                    let better = |sorted: &[u64]| sorted.partition_point(|other| *other > score);
                    let ranks = better(&lows) as u64 + 1..=better(&highs) as u64 + 1;
                    score > 0 && (low..=high).contains(&score) && ranks.contains(&entry.rank)
                }
            };
            self.claims.hold(right, || {
                format!("member {index} should have {low} to {high} and the rank of that, the board says {entry:?}")
            });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn target(&self, op: &Op) -> u64 {
        match self.kind {
            Kind::Sharded(_) => op.key,
            _ => 0,
        }
    }

    fn mark(&self, _: u64) -> Option<String> {
        match self.kind {
            Kind::Whole(_) => Some("{all-time}".to_owned()),
            Kind::Period(..) => Some("{monthly}".to_owned()),
            // The hash of the library decides which shard a member is in.
            Kind::Sharded(_) => None,
        }
    }

    fn entities(&self) -> u64 {
        let placed = |score: &&AtomicU64| score.load(Ordering::Relaxed) > 0;
        self.scores.iter().filter(placed).count() as u64
    }
}

struct Choice {
    choice: WeightedChoice,
    members: usize,
    drawn: Mutex<Vec<u64>>,
    claims: Claims,
}

impl Choice {
    async fn open(bed: &Bed) -> Result<Self> {
        let choice = WeightedChoice::new(&bed.store, &bed.namespace, "loot")?;
        let members = bed.entities(50);
        for n in 0..members {
            bed.gate.pass(0).await;
            choice.set(&format!("e{n}"), n as u64 + 1).await?;
        }
        Ok(Self {
            choice,
            members,
            drawn: Mutex::new(vec![0; members]),
            claims: Claims::default(),
        })
    }
}

impl Workload for Choice {
    async fn operate(&self, op: Op) -> Result<()> {
        if op.write {
            // The same weight again: the tree is rewritten, the shares stay.
            let member = op.index(self.members);
            self.choice
                .set(&format!("e{member}"), member as u64 + 1)
                .await?;
            return Ok(());
        }
        let picked = self.choice.pick().await?;
        let member = picked
            .as_deref()
            .and_then(|name| name.strip_prefix('e'))
            .and_then(|n| n.parse::<usize>().ok());
        match member {
            Some(member) if member < self.members => self.drawn.lock()[member] += 1,
            _ => self.claims.hold(false, || format!("{picked:?} was drawn")),
        }
        Ok(())
    }

    async fn finish(&self) -> Result<()> {
        let drawn = self.drawn.lock().clone();
        let draws = drawn.iter().sum::<u64>() as f64;
        let total = (self.members * (self.members + 1) / 2) as f64;
        for (member, count) in drawn.iter().enumerate() {
            let share = (member + 1) as f64 / total;
            let expected = draws * share;
            // Six standard deviations, and room for the skew of small counts.
            let reach = 6.0 * (expected * (1.0 - share)).sqrt() + 6.0;
            self.claims
                .hold((*count as f64 - expected).abs() <= reach, || {
                    format!("member {member} was drawn {count} times, expected {expected:.0}")
                });
        }
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    super::one_target!("{loot}");

    fn entities(&self) -> u64 {
        self.members as u64
    }
}
