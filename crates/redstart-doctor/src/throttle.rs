//! How long a connection rests after what it asked, so that the server has its time for others.
//!
//! A request of a live workload waits if it arrives while the server works for the doctor. So the share of requests that do is
//! the share of the server's time that the doctor takes: one hundredth unless it is set, by resting 99 times as long as the server
//! worked. And
//! because what leaves together is small, those that wait do not wait long.
//!
//! The server's work is what a round trip took beyond the shortest one, which is the line's. A busy machine makes single round
//! trips longer, and the line may as well; the steps of a walk are alike, so the shortest of the last few tells what they take.
//! Batches are alike whose dearest commands are.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use crate::wire::Words;

/// Commands that leave together.
pub(crate) const PIECE: usize = 12;
/// The share of the server's time that is taken, in percent, unless it is set.
pub(crate) const SHARE: u8 = 1;
/// No rest is longer, after a step of a walk and after a single command: a hiccup of the line or of a busy machine does not hold
/// the examination up. Of single commands there are about a hundred in an examination, and few of them take the server longer
/// than the fiftieth part of a millisecond.
const LONGEST: Duration = Duration::from_millis(25);
const LONGEST_SINGLE: Duration = Duration::from_millis(5);
/// What the server does at least: to read and answer a batch, and each command of it.
const BATCH: Duration = Duration::from_micros(12);
const COMMAND: Duration = Duration::from_micros(1);
/// Commands that take much longer than others in the same batch.
const DEAR: [&[u8]; 2] = [b"MEMORY", b"XINFO"];
/// Batches of a kind that are compared.
const ALIKE: usize = 16;

/// The rests of one connection.
pub(crate) struct Throttle {
    /// In percent.
    pub(crate) share: u8,
    /// The shortest round trip.
    line: Option<Duration>,
    /// What the last batches of each kind took: by the dearest command, of those that come in numbers.
    last: BTreeMap<Vec<u8>, VecDeque<Duration>>,
    /// When the next batch may leave.
    until: Option<Instant>,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            share: SHARE,
            line: None,
            last: BTreeMap::new(),
            until: None,
        }
    }
}

impl Throttle {
    /// Returns when the next batch may leave.
    pub(crate) async fn rested(&self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until.into()).await;
        }
    }

    /// Notes what a batch took, at its end.
    pub(crate) fn note(&mut self, batch: &[Words], took: Duration) {
        self.until = Some(Instant::now() + self.rest(batch, took));
    }

    fn rest(&mut self, batch: &[Words], took: Duration) -> Duration {
        let line = self.line.map_or(took, |line| line.min(took));
        self.line = Some(line);
        let (mut took, mut longest) = (took, LONGEST_SINGLE);
        if let Some(name) = dearest(batch)
            && (batch.len() > 1 || name == b"SCAN")
        {
            let last = self.last.entry(name).or_default();
            if last.len() == ALIKE {
                last.pop_front();
            }
            last.push_back(took);
            took = last.iter().copied().min().unwrap_or(took);
            longest = LONGEST;
        }
        let least = BATCH + COMMAND * u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let work = took.saturating_sub(line).max(least);
        let share = u32::from(self.share.clamp(1, 100));
        (work * (100 - share) / share).min(longest)
    }
}

/// The command that tells what a batch takes: one of those that take long if there is one, otherwise the first.
fn dearest(batch: &[Words]) -> Option<Vec<u8>> {
    let mut names = batch
        .iter()
        .filter_map(|words| Some(words.first()?.to_ascii_uppercase()));
    let first = names.next()?;
    let is_dear = |name: &Vec<u8>| DEAR.contains(&name.as_slice());
    match is_dear(&first) {
        true => Some(first),
        false => Some(names.find(is_dear).unwrap_or(first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::words;

    const fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn a_rest_is_in_proportion_to_the_servers_work() {
        let mut throttle = Throttle::default();
        let small = throttle.rest(&[words!["PING"]], micros(80));
        assert_eq!(small, micros(99 * 13));
        // Beyond what the line takes.
        let list = [words!["CLIENT", "LIST"]];
        assert_eq!(throttle.rest(&list, micros(120)), micros(99 * 40));
        assert_eq!(throttle.rest(&list, micros(80_000)), LONGEST_SINGLE);
    }

    #[test]
    fn a_larger_share_rests_less() {
        let ping = [words!["PING"]];
        for (share, rest) in [(1, 99 * 13), (50, 13), (100, 0)] {
            let mut throttle = Throttle {
                share,
                ..Throttle::default()
            };
            assert_eq!(throttle.rest(&ping, micros(80)), micros(rest));
        }
    }

    #[test]
    fn a_batch_is_judged_by_its_dearest_command() {
        let mut throttle = Throttle::default();
        throttle.rest(&[words!["PING"]], micros(50));
        let head = words!["GETRANGE", "k", "0", "127"];
        let strings = [head.clone(), head.clone()];
        let with_a_hash = [head, words!["MEMORY", "USAGE", "h"]];
        assert_eq!(throttle.rest(&strings, micros(70)), micros(99 * 20));
        assert_eq!(throttle.rest(&with_a_hash, micros(250)), micros(99 * 200));
        assert_eq!(throttle.rest(&strings, micros(250)), micros(99 * 20));
    }

    #[test]
    fn a_slow_line_is_not_taken_for_the_servers_work() {
        let mut throttle = Throttle::default();
        for _ in 0..9 {
            let rest = throttle.rest(&[words!["SCAN", "0"]], micros(20_000));
            assert_eq!(rest, micros(99 * 13));
        }
    }

    #[test]
    fn steps_of_a_walk_are_judged_by_the_shortest_of_the_last() {
        let mut throttle = Throttle::default();
        throttle.rest(&[words!["PING"]], micros(50));
        let mut step = |took| throttle.rest(&[words!["SCAN", "7"]], micros(took));
        assert_eq!(step(100), micros(99 * 50));
        // The machine was busy.
        for _ in 1..ALIKE {
            assert_eq!(step(9_000), micros(99 * 50));
        }
        // The server is.
        assert_eq!(step(9_000), LONGEST);
    }
}
