//! What can go wrong.

use std::time::Duration;

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When it begins.
    pub at: Duration,
    /// What it is.
    pub kind: FaultKind,
}

/// What can go wrong.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum FaultKind {
    /// A client's connections break.
    Cut { client: usize },
    /// A client's connections break inside of what is sent next.
    CutInside {
        client: usize,
        reply: bool,
        after: usize,
    },
    /// Nothing gets from a client to a server, from the server to the client, or both.
    Silence {
        client: usize,
        server: usize,
        up: bool,
        down: bool,
        lasts: Duration,
    },
    /// A client process stands still.
    Stop { client: usize, lasts: Duration },
    /// A client process dies, and starts again later.
    Kill {
        client: usize,
        /// Its machine too: nobody tells the servers.
        silently: bool,
        lasts: Duration,
    },
    /// A server stands still.
    Hang { server: usize, lasts: Duration },
    /// A server dies and starts again.
    Crash {
        server: usize,
        lost: Lost,
        silently: bool,
        lasts: Duration,
    },
    /// A server refuses connections.
    Refuse { server: usize, lasts: Duration },
    /// A server answers with an error.
    Answer {
        server: usize,
        error: &'static str,
        writes: bool,
        share: u64,
        lasts: Duration,
    },
    /// A server forgets its scripts.
    Forget { server: usize },
    /// A replica takes over, without what came in last. The old master may be alive and not know it.
    Failover {
        lag: Duration,
        old: OldMaster,
        knows_after: Duration,
    },
    /// A node of a cluster dies for good, and another one takes its slots over, without what came in last.
    Promote {
        server: usize,
        lag: Duration,
        known_after: Duration,
    },
    /// A part of the slots moves to another node.
    MoveSlots {
        part: usize,
        to: usize,
        lasts: Duration,
        known_after: Duration,
    },
    /// A server is short of memory for a while and drops keys.
    Evict {
        server: usize,
        /// Only keys that have a TTL.
        volatile: bool,
        /// How many of a thousand keys are dropped each time.
        share: u64,
        times: u32,
        lasts: Duration,
    },
    /// The monotonic clock of a client process jumps ahead.
    ClockJump { client: usize, ahead: Duration },
    /// The machine of a client process is suspended: its monotonic clock stands still too.
    Suspend { client: usize, lasts: Duration },
    /// The disk of a server is full after this many bytes more. Its log is tried again until there is room.
    DiskFails {
        server: usize,
        room: usize,
        /// The device fails too: what was written may not be there.
        syncs_fail: bool,
        lasts: Duration,
    },
    /// A server has no memory for more data.
    NoMemory { server: usize, lasts: Duration },
    /// A client process stands still when the next bytes from a server have reached it, before it reads them.
    StopAtReply { client: usize, lasts: Duration },
}

/// What a crash loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nothing.
    Nothing,
    /// What came in during the time before.
    Tail(Duration),
    /// Everything.
    All,
}

/// What becomes of a master that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldMaster {
    /// It crashed.
    Crashed,
    /// It is alive and takes writes until it is told.
    Alive,
    /// It hangs, and wakes up when it is told.
    Hangs,
}

impl FaultKind {
    /// For how long before it the servers forget what they did.
    pub fn lag(&self) -> Option<Duration> {
        match self {
            Self::Crash {
                lost: Lost::Tail(lag),
                ..
            } => Some(*lag),
            Self::Failover { lag, .. } | Self::Promote { lag, .. } => Some(*lag),
            _ => None,
        }
    }

    /// Its name, for counting.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cut { .. } => "cut",
            Self::CutInside { .. } => "cut inside",
            Self::Silence { .. } => "silence",
            Self::Stop { .. } => "stop",
            Self::Kill { .. } => "kill",
            Self::Hang { .. } => "hang",
            Self::Crash { .. } => "crash",
            Self::Refuse { .. } => "refuse",
            Self::Answer { .. } => "answer",
            Self::Forget { .. } => "forget",
            Self::Failover { .. } => "failover",
            Self::Promote { .. } => "promote",
            Self::MoveSlots { .. } => "move slots",
            Self::Evict { .. } => "evict",
            Self::ClockJump { .. } => "clock jump",
            Self::Suspend { .. } => "suspend",
            Self::DiskFails { .. } => "disk fails",
            Self::NoMemory { .. } => "no memory",
            Self::StopAtReply { .. } => "stop at reply",
        }
    }

    /// All names.
    pub const NAMES: &'static [&'static str] = &[
        "cut",
        "cut inside",
        "silence",
        "stop",
        "kill",
        "hang",
        "crash",
        "refuse",
        "answer",
        "forget",
        "failover",
        "promote",
        "move slots",
        "evict",
        "clock jump",
        "suspend",
        "disk fails",
        "no memory",
        "stop at reply",
    ];
}
