//! A world before it begins: everything that chance decides beforehand, and that shrinking can take away.

mod fault;

pub use fault::{Fault, FaultKind, Lost, OldMaster};

use std::{fmt, time::Duration};

use redstart_engine::Compat;

use crate::{dice::Dice, network::Weather, workload::Pattern};

/// What a world consists of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All chance comes from this.
    pub seed: u64,
    /// What the clients do.
    pub pattern: Pattern,
    /// The servers.
    pub shape: Shape,
    /// How many client processes there are.
    pub clients: usize,
    /// How many operations each of them carries out.
    pub operations: usize,
    /// The deadline of the clients' calls.
    pub deadline: Duration,
    /// The network.
    pub weather: Weather,
    /// The servers' clocks are not the same, and wrong in another way after every start.
    pub clocks_differ: bool,
    /// The monotonic clocks of the client processes run at other rates than the servers'.
    pub rates_differ: bool,
    /// What the servers are like, if they are all of one version.
    pub compat: Compat,
    /// The servers are of different versions, and perhaps of another one after every start.
    pub versions_differ: bool,
    /// Every other client process runs with other settings.
    pub settings_differ: bool,
    /// The servers keep a log on a disk and answer when it is written.
    pub keeps_log: bool,
    /// The clients and the faults aim at what is rare in other worlds of the pattern.
    pub provokes: bool,
    /// What goes wrong, in order of time.
    pub faults: Vec<Fault>,
}

/// The servers of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One server.
    Single,
    /// A master, a replica and three sentinels.
    Sentinel,
    /// A cluster of three masters.
    Cluster,
    /// Five servers that do not know each other.
    Separate,
}

/// Errors that a server may answer: the text, whether only writes get it, and whether only a cluster has it.
const ERRORS: &[(&str, bool, bool)] = &[
    (
        "LOADING Redis is loading the dataset in memory",
        false,
        false,
    ),
    (
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        false,
        false,
    ),
    (
        "READONLY You can't write against a read only replica.",
        true,
        false,
    ),
    (
        "OOM command not allowed when used memory > 'maxmemory'.",
        true,
        false,
    ),
    (
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        true,
        false,
    ),
    (
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        false,
        false,
    ),
    ("CLUSTERDOWN The cluster is down", false, true),
    (
        "TRYAGAIN Multiple keys request during rehashing of slot",
        true,
        true,
    ),
];

impl Plan {
    /// The world of a seed.
    pub fn new(seed: u64, pattern: Pattern) -> Self {
        let mut dice = Dice::of(seed, &[0]);
        let provokes = pattern.can_be_provoked() && Dice::of(seed, &[29]).per_mille(200);
        let shape = match dice.below(10) {
            _ if pattern == Pattern::Redlock => Shape::Separate,
            // What is stored on one node must be about what another one loses.
            _ if pattern == Pattern::CacheTags && provokes => Shape::Cluster,
            0..=5 => Shape::Single,
            6..=7 => Shape::Sentinel,
            _ => Shape::Cluster,
        };
        let clients = dice.between(2, 4) as usize;
        let operations = dice.between(3, 11) as usize;
        let delay = *dice.pick(&[(0, 1), (1, 3), (1, 20), (20, 60)]);
        // A whole script must get through within a deadline.
        let deadlines = match delay.1 {
            0..=3 => &[150, 300, 1000][..],
            _ => &[500, 1000, 2000],
        };
        let deadline = Duration::from_millis(*dice.pick(deadlines));
        let windows = match delay.1 {
            0..=3 => &[64 * 1024, 64 * 1024, 1024][..],
            _ => &[64 * 1024],
        };
        let weather = Weather {
            delay,
            slow: *dice.pick(&[(0, 0), (0, 0), (20, 200), (50, 1500)]),
            split: *dice.pick(&[0, 50, 500]),
            window: *dice.pick(windows),
        };
        let mut plan = Self {
            seed,
            pattern,
            shape,
            clients,
            operations,
            deadline,
            weather,
            clocks_differ: Dice::of(seed, &[7]).per_mille(350),
            rates_differ: Dice::of(seed, &[23]).per_mille(300),
            compat: Compat::default(),
            versions_differ: false,
            settings_differ: Dice::of(seed, &[22]).per_mille(250),
            keeps_log: Dice::of(seed, &[25]).per_mille(150),
            provokes,
            faults: Vec::new(),
        };
        plan.choose_versions();
        let count = match dice.below(8) {
            0 => 0,
            _ => dice.between(1, 6),
        };
        for _ in 0..count {
            let at = dice.millis(50, 200 + operations as u64 * pattern.pace());
            let kind = plan.fault(&mut dice);
            plan.faults.push(Fault { at, kind });
        }
        // Drawn apart, so that the rest of a world does not depend on them.
        let mut dice = Dice::of(seed, &[20]);
        let count = match dice.below(3) {
            0 => dice.between(1, 2),
            _ => 0,
        };
        for _ in 0..count {
            let at = dice.millis(50, 200 + operations as u64 * pattern.pace());
            let kind = plan.rare_fault(&mut dice);
            plan.faults.push(Fault { at, kind });
        }
        plan.add_shortages();
        plan.add_restarts();
        plan.provoke();
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    /// Disks and memory that run out, and processes that stand still before they read a reply. Drawn apart as well.
    fn add_shortages(&mut self) {
        let mut dice = Dice::of(self.seed, &[26]);
        let end = 200 + self.operations as u64 * self.pattern.pace();
        let disks = match self.keeps_log {
            true => dice.between(0, 2),
            false => 0,
        };
        for _ in 0..disks {
            let at = dice.millis(50, end);
            let kind = FaultKind::DiskFails {
                server: dice.below(self.servers() as u64) as usize,
                room: match dice.below(3) {
                    0 => 0,
                    _ => dice.below(400) as usize,
                },
                syncs_fail: dice.per_mille(300),
                lasts: dice.millis(10, 4000),
            };
            self.faults.push(Fault { at, kind });
        }
        if dice.per_mille(60) {
            let at = dice.millis(50, end);
            let kind = FaultKind::NoMemory {
                server: dice.below(self.servers() as u64) as usize,
                lasts: dice.millis(10, 4000),
            };
            self.faults.push(Fault { at, kind });
        }
        if dice.per_mille(200) {
            let at = dice.millis(50, end);
            let kind = FaultKind::StopAtReply {
                client: dice.below(self.clients as u64) as usize,
                lasts: dice.millis(2000, 9000),
            };
            self.faults.push(Fault { at, kind });
        }
    }

    /// Separate servers fail more often, as there are more of them, and not before they have been up for a while.
    fn add_restarts(&mut self) {
        if self.shape != Shape::Separate {
            return;
        }
        let mut dice = Dice::of(self.seed, &[28]);
        let end = 200 + self.operations as u64 * self.pattern.pace();
        for _ in 0..dice.between(0, 4) {
            let at = dice.millis(50, end);
            let server = dice.below(self.servers() as u64) as usize;
            let lasts = dice.millis(5, 4000);
            let kind = match dice.below(4) {
                0 => FaultKind::Hang { server, lasts },
                _ => FaultKind::Crash {
                    server,
                    lost: *dice.pick(&[Lost::Nothing, Lost::All, Lost::All]),
                    silently: dice.per_mille(300),
                    lasts,
                },
            };
            self.faults.push(Fault { at, kind });
        }
        for fault in &mut self.faults {
            fault.at += UP_BEFORE;
        }
    }

    /// What makes a missing check show that shows in one of many thousand worlds otherwise.
    fn provoke(&mut self) {
        if !self.provokes {
            return;
        }
        let mut dice = Dice::of(self.seed, &[29, 1]);
        let end = 200 + self.operations as u64 * self.pattern.pace();
        match self.pattern {
            // A worker does not reach any server for longer than its lease, while it runs a job.
            Pattern::Queue => {
                self.hurry();
                for _ in 0..dice.between(1, 2) {
                    let at = dice.millis(300, end);
                    let client = dice.below(self.clients as u64) as usize;
                    let lasts = dice.millis(3000, 9000);
                    for server in 0..self.servers() {
                        let kind = FaultKind::Silence {
                            client,
                            server,
                            up: true,
                            down: true,
                            lasts,
                        };
                        self.faults.push(Fault { at, kind });
                    }
                }
            }
            // A process stands still for longer than its lease before it reads that it may begin, and asks again over a slow line.
            Pattern::Idempotency => {
                self.hurry();
                self.weather.slow = (150, 1500);
                self.stand_still(&mut dice, end, (1500, 6000));
            }
            // Processes stand still between two steps of a change.
            Pattern::Graph => self.stand_still(&mut dice, end, (300, 3000)),
            // What was acknowledged last is lost.
            Pattern::Bloom | Pattern::CacheTags => {
                let at = dice.millis(1000, 1000 + end);
                let kind = self.rollback(&mut dice);
                self.faults.push(Fault { at, kind });
            }
            _ => {}
        }
    }

    /// Processes stand still before they read a reply, four times, for so many milliseconds.
    fn stand_still(&mut self, dice: &mut Dice, end: u64, lasts: (u64, u64)) {
        for _ in 0..4 {
            let at = dice.millis(50, end);
            let client = dice.below(self.clients as u64) as usize;
            let lasts = dice.millis(lasts.0, lasts.1);
            let kind = FaultKind::StopAtReply { client, lasts };
            self.faults.push(Fault { at, kind });
        }
    }

    /// A short deadline, as far as the weather allows it.
    fn hurry(&mut self) {
        self.deadline = Duration::from_millis(match self.weather.delay.1 {
            0..=3 => 300,
            _ => 500,
        });
    }

    /// A server goes back to what it knew a while ago.
    fn rollback(&self, dice: &mut Dice) -> FaultKind {
        let server = dice.below(self.servers() as u64) as usize;
        let (lag, lasts) = (dice.millis(300, 1000), dice.millis(5, 500));
        match self.shape {
            Shape::Single | Shape::Separate => FaultKind::Crash {
                server,
                lost: Lost::Tail(lag),
                silently: false,
                lasts,
            },
            Shape::Sentinel => FaultKind::Failover {
                lag,
                old: OldMaster::Crashed,
                knows_after: lasts,
            },
            Shape::Cluster => FaultKind::Promote {
                server,
                lag,
                known_after: lasts,
            },
        }
    }

    /// Half of the worlds have servers like Redis 7.0, some others one other version, and some several.
    fn choose_versions(&mut self) {
        let mut dice = Dice::of(self.seed, &[21]);
        match dice.below(4) {
            0 | 1 => {}
            // What a new server has made of a filter, an old one cannot read.
            2 if self.pattern != Pattern::Bloom => self.versions_differ = true,
            _ => self.compat = *dice.pick(&Compat::ALL),
        }
    }

    /// What a server is like, by how often it was started. Where versions differ, half of them are of the one that has a
    /// command of which the others know nothing and that the library uses.
    pub fn compat(&self, server: usize, starts: u64) -> Compat {
        let mut dice = Dice::of(self.seed, &[21, server as u64 + 1, starts]);
        match self.versions_differ {
            true if dice.per_mille(500) => Compat::Valkey9,
            true => *dice.pick(&Compat::ALL),
            false => self.compat,
        }
    }

    /// How many microseconds the monotonic clock of a client counts in a second of the servers. The library allows for
    /// clocks that differ by one per cent.
    pub fn clock_rate(&self, client: usize) -> Option<u64> {
        let rates = [991_000, 997_000, 1_000_000, 1_004_000, 1_009_000];
        self.rates_differ
            .then(|| *Dice::of(self.seed, &[24, client as u64]).pick(&rates))
    }

    fn rare_fault(&self, dice: &mut Dice) -> FaultKind {
        let client = dice.below(self.clients as u64) as usize;
        match dice.below(5) {
            0..=2 if self.pattern.may_be_evicted() => FaultKind::Evict {
                server: dice.below(self.servers() as u64) as usize,
                volatile: dice.per_mille(500),
                share: *dice.pick(&[100, 500, 1000]),
                times: dice.between(1, 4) as u32,
                lasts: dice.millis(10, 3000),
            },
            0 | 3 => FaultKind::ClockJump {
                client,
                ahead: dice.millis(10, 6000),
            },
            _ => FaultKind::Suspend {
                client,
                lasts: dice.millis(100, 8000),
            },
        }
    }

    /// How many servers hold data.
    pub fn servers(&self) -> usize {
        match self.shape {
            Shape::Single => 1,
            Shape::Sentinel => 2,
            Shape::Cluster => 3,
            Shape::Separate => 5,
        }
    }

    /// A table: which fault a number of the dice stands for.
    fn fault(&self, dice: &mut Dice) -> FaultKind {
        let client = dice.below(self.clients as u64) as usize;
        let server = dice.below(self.servers() as u64) as usize;
        // Sentinels fail too.
        let any = match self.shape {
            Shape::Sentinel if dice.per_mille(300) => 2 + dice.below(3) as usize,
            _ => server,
        };
        let lasts = match dice.below(4) {
            0 => dice.millis(5, 100),
            1 | 2 => dice.millis(100, 2500),
            _ => dice.millis(2500, 9000),
        };
        match dice.below(18) {
            0 | 1 => FaultKind::Cut { client },
            2 | 3 | 16 | 17 => FaultKind::CutInside {
                client,
                reply: dice.per_mille(600),
                after: match dice.below(3) {
                    0 => 0,
                    _ => dice.below(200) as usize,
                },
            },
            4 | 5 => {
                let (up, down) = *dice.pick(&[(true, true), (true, false), (false, true)]);
                FaultKind::Silence {
                    client,
                    server: any,
                    up,
                    down,
                    lasts,
                }
            }
            6 | 7 => FaultKind::Stop { client, lasts },
            8 => FaultKind::Kill {
                client,
                silently: dice.per_mille(300),
                lasts,
            },
            9 => FaultKind::Hang { server: any, lasts },
            10 | 11 => FaultKind::Crash {
                server: any,
                lost: match dice.below(4) {
                    0 => Lost::All,
                    1 => Lost::Tail(dice.millis(1, 1000)),
                    _ => Lost::Nothing,
                },
                silently: dice.per_mille(300),
                lasts,
            },
            12 => FaultKind::Refuse { server: any, lasts },
            13 => {
                let cluster = self.shape == Shape::Cluster;
                let known: Vec<_> = ERRORS
                    .iter()
                    .filter(|(_, _, only_cluster)| cluster || !only_cluster)
                    .collect();
                let (error, writes, _) = **dice.pick(&known);
                FaultKind::Answer {
                    server,
                    error,
                    writes,
                    share: *dice.pick(&[100, 500, 1000]),
                    lasts,
                }
            }
            14 if self.shape == Shape::Single => FaultKind::Forget { server },
            _ => match self.shape {
                Shape::Single | Shape::Separate => FaultKind::Forget { server },
                Shape::Sentinel => FaultKind::Failover {
                    lag: dice.millis(0, 1000),
                    old: *dice.pick(&[OldMaster::Crashed, OldMaster::Alive, OldMaster::Hangs]),
                    knows_after: dice.millis(0, 10_000),
                },
                Shape::Cluster if dice.per_mille(250) => FaultKind::Promote {
                    server,
                    lag: dice.millis(0, 1000),
                    known_after: dice.millis(0, 5000),
                },
                Shape::Cluster => FaultKind::MoveSlots {
                    part: dice.below(PARTS as u64) as usize,
                    to: server,
                    lasts: dice.millis(10, 3000),
                    known_after: dice.millis(0, 3000),
                },
            },
        }
    }
}

/// How long separate servers have been up before anything goes wrong.
pub const UP_BEFORE: Duration = Duration::from_secs(6);

/// Into how many parts the slots of a cluster are divided.
pub const PARTS: usize = 6;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} on {:?}, {} clients, {} operations each, deadline {:?}",
            self.seed, self.pattern, self.shape, self.clients, self.operations, self.deadline
        )?;
        writeln!(f, "  {:?}", self.weather)?;
        if self.clocks_differ {
            writeln!(f, "  the clocks of the servers differ")?;
        }
        if self.rates_differ {
            let rates = (0..self.clients).filter_map(|client| self.clock_rate(client));
            let rates: Vec<_> = rates.collect();
            writeln!(f, "  the clocks of the processes count {rates:?} µs/s")?;
        }
        if self.versions_differ {
            let known = (0..self.servers()).map(|server| self.compat(server, 0).name());
            let known: Vec<_> = known.collect();
            writeln!(f, "  the servers are of versions {}", known.join(", "))?;
        } else if self.compat != Compat::default() {
            writeln!(f, "  the servers are of version {}", self.compat.name())?;
        }
        if self.settings_differ {
            writeln!(f, "  every other process has other settings")?;
        }
        if self.keeps_log {
            writeln!(f, "  the servers keep a log")?;
        }
        if self.provokes {
            writeln!(f, "  what is rare is provoked")?;
        }
        for fault in &self.faults {
            writeln!(f, "  {:>8.3} s  {:?}", fault.at.as_secs_f64(), fault.kind)?;
        }
        Ok(())
    }
}
