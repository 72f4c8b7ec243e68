//! What the clients of a world met.

/// What the clients of a world met: a world in which everything fails, or nobody meets anybody, shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Calls that ended well.
    pub succeeded: u64,
    /// Calls that ended with an error.
    pub failed: u64,
    /// Calls that their callers dropped.
    pub dropped: u64,
    /// Calls in which a client met another one: the lock was held, the quota used, the answer there, or two calls about one
    /// thing were under way at the same time.
    pub contended: u64,
    /// Histories that were judged.
    pub histories: u64,
    /// Those of them that have too many orders.
    pub undecided: u64,
    /// Worlds in which data was lost, so that some judges are lenient.
    pub lossy: u64,
}

impl Tally {
    /// A call has ended.
    pub fn answered(&mut self, fine: Option<bool>) {
        match fine {
            Some(true) => self.succeeded += 1,
            Some(false) => self.failed += 1,
            None => {}
        }
    }

    /// Adds those of another world.
    pub fn add(&mut self, other: &Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.dropped += other.dropped;
        self.contended += other.contended;
        self.histories += other.histories;
        self.undecided += other.undecided;
        self.lossy += other.lossy;
    }
}
