//! The settings of a log, which may change while it is written.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::{Fsync, config::Config};

/// The settings of a log, which may change while it is written.
pub(super) struct Policy {
    /// The place of the choice in [`CHOICES`].
    pub(super) fsync: AtomicU8,
    /// An increment shorter than this is never reason to rewrite.
    rewrite_from: AtomicU64,
    /// By how many percent of its base the log grows before it is rewritten; 0 is never.
    rewrite_percentage: AtomicU64,
}

const CHOICES: [Fsync; 3] = [Fsync::Always, Fsync::EverySec, Fsync::No];

impl Policy {
    pub(super) fn new(config: &Config) -> Policy {
        let policy = Policy {
            fsync: AtomicU8::new(0),
            rewrite_from: AtomicU64::new(0),
            rewrite_percentage: AtomicU64::new(0),
        };
        policy.follow(config);
        policy
    }

    pub(super) fn follow(&self, config: &Config) {
        let choice = CHOICES.iter().position(|one| *one == config.fsync);
        self.fsync
            .store(choice.unwrap_or(1) as u8, Ordering::Relaxed);
        self.rewrite_from
            .store(config.rewrite_from, Ordering::Relaxed);
        self.rewrite_percentage
            .store(config.rewrite_percentage, Ordering::Relaxed);
    }

    pub(super) fn fsync(&self) -> Fsync {
        CHOICES[usize::from(self.fsync.load(Ordering::Relaxed))]
    }

    /// Whether the log is rewritten without being asked for.
    pub(super) fn rewrites(&self) -> bool {
        self.rewrite_percentage.load(Ordering::Relaxed) > 0
    }

    /// Whether an increment of this length is reason to rewrite.
    pub(super) fn wants_rewrite(&self, len: u64, base_len: u64) -> bool {
        let percentage = self.rewrite_percentage.load(Ordering::Relaxed);
        let growth = base_len.saturating_mul(percentage) / 100;
        percentage > 0 && len > growth.max(self.rewrite_from.load(Ordering::Relaxed))
    }
}
