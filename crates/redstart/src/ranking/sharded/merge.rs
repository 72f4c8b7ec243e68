//! Reading all shards as one list.

use std::cmp::Ordering;

use super::{LOCATE, Point, SLICE, ShardedLeaderboard};
use crate::{error::Result, script::Batch};

/// Which way a list is read from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the start on, the best first.
    Forth,
    /// From the one before the start, towards the best.
    Back,
}

/// What is known of one shard while it is merged.
struct Lane {
    start: u64,
    /// What was read, in the direction of reading.
    points: Vec<Point>,
    /// Nothing follows what was read.
    ended: bool,
}

impl ShardedLeaderboard {
    /// The next `n` members of all shards, each shard from its own start.
    ///
    /// Hashing spreads members evenly, so a shard usually holds about its share of the `n`. That much is read of
    /// each, and more only of those whose last row is still among the `n`.
    pub(super) async fn merge(
        &self,
        starts: &[u64],
        direction: Direction,
        n: u32,
    ) -> Result<Vec<Point>> {
        let n = n as usize;
        if n == 0 {
            return Ok(Vec::new());
        }
        let mut lanes: Vec<Lane> = starts
            .iter()
            .map(|start| Lane {
                start: *start,
                points: Vec::new(),
                ended: direction == Direction::Back && *start == 0,
            })
            .collect();
        // The share and two deviations of it: one or two of a hundred shards are asked twice.
        let share = n as f64 / lanes.len() as f64;
        let first = ((share + 2.0 * share.sqrt() + 1.0).ceil() as usize).min(n);
        let mut wanted: Vec<(usize, usize)> = (0..lanes.len())
            .filter(|lane| !lanes[*lane].ended)
            .map(|lane| (lane, first))
            .collect();
        while !wanted.is_empty() {
            self.extend(&mut lanes, &wanted, direction).await?;
            let last = nth(self, &lanes, direction, n);
            wanted = lanes
                .iter()
                .enumerate()
                .filter(|(_, lane)| {
                    let matters = match (lane.points.last(), &last) {
                        (Some(own), Some(last)) => {
                            self.along(own, last, direction) != Ordering::Greater
                        }
                        _ => true,
                    };
                    !lane.ended && lane.points.len() < n && matters
                })
                .map(|(at, lane)| (at, lane.points.len().max(1).min(n)))
                .collect();
        }
        let mut all: Vec<Point> = lanes.into_iter().flat_map(|lane| lane.points).collect();
        all.sort_unstable_by(|a, b| self.along(a, b, direction));
        // A shard that was read twice while it changed may show a member twice.
        all.dedup_by(|a, b| a.member == b.member);
        all.truncate(n);
        Ok(all)
    }

    /// Reads further rows of some lanes, in one round trip to each node.
    async fn extend(
        &self,
        lanes: &mut [Lane],
        wanted: &[(usize, usize)],
        direction: Direction,
    ) -> Result<()> {
        let mut batch = Batch::new();
        for (at, count) in wanted {
            let (known, count) = (lanes[*at].points.len() as u64, *count as u64);
            let start = lanes[*at].start;
            let (from, to) = match direction {
                Direction::Forth => (start + known, start + known + count - 1),
                Direction::Back => {
                    let end = start - known;
                    (end.saturating_sub(count), end - 1)
                }
            };
            let call = SLICE.on(&self.shards[*at]).key().arg(self.order.name());
            batch.push(call.arg(from).arg(to).idempotent());
        }
        let replies = batch.run::<Vec<(String, f64)>>(&self.store).await?;
        for ((at, count), rows) in wanted.iter().zip(replies) {
            let rows = rows?;
            let lane = &mut lanes[*at];
            lane.ended = rows.len() < *count;
            let points = rows
                .into_iter()
                .map(|(member, score)| Point { score, member });
            match direction {
                Direction::Forth => lane.points.extend(points),
                Direction::Back => lane.points.extend(points.rev()),
            }
            if direction == Direction::Back && lane.points.len() as u64 >= lane.start {
                lane.ended = true;
            }
        }
        Ok(())
    }

    /// The order in which a list is read.
    fn along(&self, a: &Point, b: &Point, direction: Direction) -> Ordering {
        match direction {
            Direction::Forth => self.compare(a, b),
            Direction::Back => self.compare(b, a),
        }
    }

    /// For each shard, how many of its members are among the best `offset` of all.
    ///
    /// A bisection of all shards at once: take a member from the middle of the widest window as a pivot, ask every
    /// shard how many members it has before the pivot, and keep the sides that contain the offset.
    pub(super) async fn select(&self, offset: u64) -> Result<Vec<u64>> {
        let mut high = self.lengths().await?;
        let mut low = vec![0u64; high.len()];
        if offset >= high.iter().sum() {
            return Ok(high);
        }
        loop {
            let widest = (0..low.len())
                .max_by_key(|shard| high[*shard] - low[*shard])
                .unwrap_or(0);
            if low.iter().sum::<u64>() >= offset || high[widest] <= low[widest] {
                return Ok(low);
            }
            let middle = low[widest] + (high[widest] - low[widest]) / 2;
            let call = SLICE.on(&self.shards[widest]).key().arg(self.order.name());
            let pivot: Vec<(String, f64)> = call
                .arg(middle)
                .arg(middle)
                .idempotent()
                .run(&self.store)
                .await?;
            let Some((member, score)) = pivot.into_iter().next() else {
                // The shard shrank meanwhile.
                high[widest] = middle;
                continue;
            };
            let before = self.locate(&Point { score, member }).await?;
            let here = before.iter().map(|(before, _)| before).sum::<u64>();
            for (shard, (before, _)) in before.iter().enumerate() {
                let cut = (*before).clamp(low[shard], high[shard]);
                match here.cmp(&offset) {
                    Ordering::Greater => high[shard] = cut,
                    Ordering::Less | Ordering::Equal => low[shard] = cut,
                }
            }
            match here.cmp(&offset) {
                // The pivot itself comes before the offset.
                Ordering::Less => low[widest] = (low[widest] + 1).min(high[widest]),
                Ordering::Equal => return Ok(low),
                Ordering::Greater => {}
            }
        }
    }

    /// For each shard, how many of its members come before a point, and 1 if the point is in it.
    pub(super) async fn locate(&self, point: &Point) -> Result<Vec<(u64, u64)>> {
        let mut batch = Batch::new();
        for shard in &self.shards {
            let call = LOCATE.on(shard).key().arg(self.order.name());
            batch.push(call.arg(point.score).arg(&point.member).idempotent());
        }
        batch.run(&self.store).await?.into_iter().collect()
    }
}

/// The last of the first `n` points of all lanes; `None` if there are fewer.
fn nth(
    board: &ShardedLeaderboard,
    lanes: &[Lane],
    direction: Direction,
    n: usize,
) -> Option<Point> {
    let mut all: Vec<&Point> = lanes.iter().flat_map(|lane| &lane.points).collect();
    if all.len() < n {
        return None;
    }
    let (_, nth, _) = all.select_nth_unstable_by(n - 1, |a, b| board.along(a, b, direction));
    Some((*nth).clone())
}
