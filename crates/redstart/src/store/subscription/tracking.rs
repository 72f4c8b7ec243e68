//! Which prefixes of keys a connection tracks for all its subscribers.
//!
//! A server takes new prefixes for a connection that tracks already, as long as none of them overlaps with another, and
//! it forgets prefixes only all at once. So overlapping ones are merged, and a prefix that nobody wants any more
//! stays until there are many of them.

use std::collections::BTreeSet;

use redis::Cmd;

/// How many prefixes that nobody wants are left in place, beside twice those that are wanted.
const LEFT_OVER: usize = 16;

/// The tracking of one connection.
#[derive(Default)]
pub(super) struct Tracking {
    /// What the server tracks; no two of them overlap.
    on: Vec<Vec<u8>>,
    /// What it will track once it has confirmed, and how many confirmations are to come.
    asked: Option<(Vec<Vec<u8>>, usize)>,
    /// Subscribers that hear of all their changes.
    pub(super) up: BTreeSet<u64>,
}

/// What has to be done for the subscribers of now.
pub(super) enum Step {
    /// All of them are served, or will be after a confirmation.
    Nothing,
    /// They all hear of their changes.
    Served,
    /// Commands to send. `gap` means that changes in between may be missed by all subscribers.
    Send { commands: Vec<Cmd>, gap: bool },
}

impl Tracking {
    /// The connection is a new one.
    pub(super) fn reset(&mut self) {
        self.on.clear();
        self.asked = None;
    }

    /// Whether the server tracks anything for this connection.
    pub(super) fn is_on(&self) -> bool {
        !self.on.is_empty() || self.asked.is_some()
    }

    pub(super) fn step<'a>(&mut self, prefixes: impl Iterator<Item = &'a Vec<u8>>) -> Step {
        if self.asked.is_some() {
            return Step::Nothing;
        }
        let wanted = merged(prefixes);
        if wanted.is_empty() {
            if self.on.is_empty() {
                return Step::Served;
            }
            self.asked = Some((Vec::new(), 1));
            return Step::Send {
                commands: vec![off()],
                gap: false,
            };
        }
        let new: Vec<Vec<u8>> = wanted
            .iter()
            .filter(|prefix| !self.on.iter().any(|on| prefix.starts_with(on)))
            .cloned()
            .collect();
        let overlaps = new
            .iter()
            .any(|new| self.on.iter().any(|on| on.starts_with(new)));
        let stale = self.on.len() > 2 * wanted.len() + LEFT_OVER;
        if overlaps || stale {
            let commands = vec![off(), on(&wanted)];
            self.asked = Some((wanted, 2));
            return Step::Send {
                commands,
                gap: true,
            };
        }
        if new.is_empty() {
            return Step::Served;
        }
        let commands = vec![on(&new)];
        let all = self.on.iter().cloned().chain(new).collect();
        self.asked = Some((all, 1));
        Step::Send {
            commands,
            gap: false,
        }
    }

    /// The server confirmed a command.
    pub(super) fn confirmed(&mut self) {
        match self.asked.take() {
            Some((prefixes, 1)) => self.on = prefixes,
            Some((prefixes, left)) => {
                // What was tracked is so no longer.
                self.on.clear();
                self.asked = Some((prefixes, left - 1));
            }
            None => {}
        }
    }

    /// The server refused a command; the others that were sent with it are answered too.
    pub(super) fn refused(&mut self) {
        if let Some((prefixes, left)) = self.asked.take()
            && left > 1
        {
            self.asked = Some((prefixes, left - 1));
        }
    }
}

/// The fewest prefixes that cover these.
fn merged<'a>(prefixes: impl Iterator<Item = &'a Vec<u8>>) -> Vec<Vec<u8>> {
    let mut all: Vec<&Vec<u8>> = prefixes.collect();
    all.sort_unstable();
    let mut merged: Vec<Vec<u8>> = Vec::new();
    for prefix in all {
        // Sorted, what covers a prefix stands right before those that it covers.
        if !merged.last().is_some_and(|last| prefix.starts_with(last)) {
            merged.push(prefix.clone());
        }
    }
    merged
}

fn on(prefixes: &[Vec<u8>]) -> Cmd {
    let mut cmd = redis::cmd("CLIENT");
    cmd.arg("TRACKING").arg("ON").arg("BCAST");
    for prefix in prefixes {
        cmd.arg("PREFIX").arg(&prefix[..]);
    }
    cmd
}

fn off() -> Cmd {
    let mut cmd = redis::cmd("CLIENT");
    cmd.arg("TRACKING").arg("OFF");
    cmd
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    fn sent(tracking: &mut Tracking, words: &[&str]) -> Option<(usize, bool)> {
        match tracking.step(prefixes(words).iter()) {
            Step::Send { commands, gap } => Some((commands.len(), gap)),
            Step::Served => None,
            Step::Nothing => panic!("a confirmation is missing"),
        }
    }

    #[test]
    fn prefixes_are_added_without_a_gap_unless_they_overlap() {
        let mut tracking = Tracking::default();
        assert_eq!(sent(&mut tracking, &["a:", "b:", "b:1"]), Some((1, false)));
        assert!(matches!(tracking.step([].iter()), Step::Nothing));
        tracking.confirmed();
        assert_eq!(sent(&mut tracking, &["a:", "b:1"]), None);
        assert_eq!(sent(&mut tracking, &["a:", "c:"]), Some((1, false)));
        tracking.confirmed();
        assert_eq!(tracking.on, prefixes(&["a:", "b:", "c:"]));
        assert_eq!(sent(&mut tracking, &["", "c:"]), Some((2, true)));
        tracking.confirmed();
        tracking.confirmed();
        assert_eq!(tracking.on, prefixes(&[""]));
        assert_eq!(sent(&mut tracking, &[]), Some((1, false)));
        tracking.confirmed();
        assert!(!tracking.is_on());
    }

    #[test]
    fn prefixes_that_nobody_wants_do_not_pile_up() {
        let mut tracking = Tracking::default();
        for n in 0..1000 {
            if let Some((commands, _)) = sent(&mut tracking, &["a:", &format!("{n}:")]) {
                (0..commands).for_each(|_| tracking.confirmed());
            }
            assert!(tracking.on.len() <= 4 + LEFT_OVER + 1);
        }
    }
}
