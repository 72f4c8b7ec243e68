//! Rounds that alternate between the contestants, so that a noisy neighbour hits both.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// What is measured and how; collects the rows of the report.
pub(crate) struct Bench {
    length: Duration,
    rounds: usize,
    json: bool,
    only: Vec<String>,
    family: String,
    /// Whether the family's A/A run is still to be made.
    calibrate: bool,
    rows: Vec<Row>,
    notes: Vec<String>,
    /// The processes whose CPU time counts as the server's.
    servers: Servers,
}

/// What the two figures of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Operations per second; more is better.
    PerSecond,
    /// Microseconds; less is better.
    Micros,
    /// Bytes; less is better.
    Bytes,
}

impl Unit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::PerSecond => "per second",
            Self::Micros => "µs",
            Self::Bytes => "bytes",
        }
    }
}

/// One comparison. A ratio above 1 is in our favour, whatever the unit.
pub(crate) struct Row {
    pub(crate) family: String,
    pub(crate) name: String,
    pub(crate) peer: String,
    pub(crate) unit: Unit,
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    pub(crate) ratio: f64,
    /// The 95 % interval of the median ratio, where there were rounds.
    pub(crate) interval: Option<(f64, f64)>,
    /// CPU time per operation, ours and the peer's.
    pub(crate) cpu: Option<(Cpu, Cpu)>,
    pub(crate) floor: f64,
    /// What we want, where that is more than the floor.
    pub(crate) goal: Option<f64>,
}

/// CPU time per operation in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) client: f64,
    /// Zero where the server is in the client's process.
    pub(crate) server: f64,
}

impl Row {
    pub(crate) fn held(&self) -> bool {
        self.ratio >= self.floor
    }

    /// What is to be said of it.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.goal {
            _ if !self.held() => "BELOW",
            Some(goal) if self.ratio < goal => "goal missed",
            _ => "held",
        }
    }
}

/// The processes of servers; clones are the same list.
#[derive(Clone, Default)]
struct Servers(Arc<Mutex<Vec<u32>>>);

impl Servers {
    fn list(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server whose CPU time counts. Declared after its server, it is dropped before it.
#[must_use = "the server counts for as long as this is kept"]
pub(crate) struct Watched {
    pid: Option<u32>,
    servers: Servers,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.servers.list().retain(|pid| Some(*pid) != self.pid);
    }
}

/// What one contestant did in one measurement.
#[derive(Clone, Copy)]
struct Drive {
    rate: f64,
    cpu: Cpu,
}

impl Bench {
    pub(crate) fn new(millis: u64, rounds: usize, json: bool, only: Vec<String>) -> Self {
        Self {
            length: Duration::from_millis(millis.max(20)),
            rounds: rounds.max(1),
            json,
            only,
            family: String::new(),
            calibrate: false,
            rows: Vec::new(),
            notes: Vec::new(),
            servers: Servers::default(),
        }
    }

    /// Counts the CPU time of this server until the guard is dropped, which must be before the server is.
    pub(crate) fn watch(&self, server: &redstart_testkit::Server) -> Watched {
        let pid = server.pid();
        self.servers.list().extend(pid);
        Watched {
            pid,
            servers: self.servers.clone(),
        }
    }

    pub(crate) fn family(&mut self, name: &str) {
        self.family = name.to_owned();
        self.servers.list().clear();
        self.calibrate = true;
        if !self.json {
            eprintln!("{name} …");
        }
    }

    /// Something worth printing beside the ratios: versions, bytes.
    pub(crate) fn note(&mut self, text: &str) {
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "family": self.family, "note": text })
            );
        } else {
            eprintln!("  {text}");
        }
        self.notes.push(format!("{}: {text}", self.family));
    }

    /// Compares two ways of doing one thing by their rate with `tasks` concurrent tasks. `floor` is what
    /// the median of the rounds' ratios, ours / theirs, must reach. The two halves of a round follow each
    /// other at once, so other load on the machine hits both.
    pub(crate) async fn rate<A, FA, B, FB>(
        &mut self,
        name: &str,
        peer: &str,
        floor: f64,
        tasks: usize,
        ours: A,
        theirs: B,
    ) -> anyhow::Result<()>
    where
        A: Fn(usize) -> FA + Clone + Send + Sync + 'static,
        FA: Future<Output = anyhow::Result<()>> + Send,
        B: Fn(usize) -> FB + Clone + Send + Sync + 'static,
        FB: Future<Output = anyhow::Result<()>> + Send,
    {
        if !self.only.is_empty() && !self.only.iter().any(|part| name.contains(part.as_str())) {
            return Ok(());
        }
        if std::mem::take(&mut self.calibrate) {
            let (a, b) = self.alternate(tasks, &ours, &ours).await?;
            let ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a.rate / b.rate).collect();
            let (low, high) = interval(&ratios);
            self.note(&format!(
                "{name} against itself: {:.2} ({low:.2} to {high:.2}); smaller differences mean nothing",
                median(ratios)
            ));
        }
        let (ours, theirs) = self.alternate(tasks, &ours, &theirs).await?;
        let cpu = |drives: &[Drive]| Cpu {
            client: median(drives.iter().map(|drive| drive.cpu.client).collect()),
            server: median(drives.iter().map(|drive| drive.cpu.server).collect()),
        };
        let cpu = Some((cpu(&ours), cpu(&theirs)));
        let rates = |drives: &[Drive]| drives.iter().map(|drive| drive.rate).collect();
        self.rounds(name, peer, floor, rates(&ours), rates(&theirs), cpu);
        Ok(())
    }

    /// Rounds in which the two contestants take turns to go first.
    async fn alternate<A, FA, B, FB>(
        &self,
        tasks: usize,
        ours: &A,
        theirs: &B,
    ) -> anyhow::Result<(Vec<Drive>, Vec<Drive>)>
    where
        A: Fn(usize) -> FA + Clone + Send + Sync + 'static,
        FA: Future<Output = anyhow::Result<()>> + Send,
        B: Fn(usize) -> FB + Clone + Send + Sync + 'static,
        FB: Future<Output = anyhow::Result<()>> + Send,
    {
        let (mut our_drives, mut their_drives) = (Vec::new(), Vec::new());
        // The first round warms up connections, scripts and caches, and does not count.
        for round in 0..=self.rounds {
            let length = if round == 0 {
                self.length / 4
            } else {
                self.length
            };
            let (our_drive, their_drive) = if round % 2 == 0 {
                let our_drive = self.drive(length, tasks, ours).await?;
                (our_drive, self.drive(length, tasks, theirs).await?)
            } else {
                let their_drive = self.drive(length, tasks, theirs).await?;
                (self.drive(length, tasks, ours).await?, their_drive)
            };
            if round > 0 {
                our_drives.push(our_drive);
                their_drives.push(their_drive);
            }
        }
        Ok((our_drives, their_drives))
    }

    /// Records rounds that were measured elsewhere, each with one rate of both: the median of their ratios
    /// counts.
    pub(crate) fn rounds_of(
        &mut self,
        name: &str,
        peer: &str,
        floor: f64,
        ours: Vec<f64>,
        theirs: Vec<f64>,
    ) {
        self.rounds(name, peer, floor, ours, theirs, None);
    }

    /// Records rounds of a cost that were measured elsewhere, each with one figure of both: less is better.
    pub(crate) fn costs_of(
        &mut self,
        name: &str,
        peer: &str,
        unit: Unit,
        floor: f64,
        ours: Vec<f64>,
        theirs: Vec<f64>,
    ) {
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| b / a).collect();
        let interval = Some(interval(&ratios));
        self.record(Row {
            family: self.family.clone(),
            name: name.to_owned(),
            peer: peer.to_owned(),
            unit,
            ours: median(ours),
            theirs: median(theirs),
            ratio: median(ratios),
            interval,
            cpu: None,
            floor,
            goal: crate::goal::of(name, peer),
        });
    }

    /// Compares two ways of doing one thing by their latency while calls start at a fixed rate, half of what the slower
    /// one can do: an answer's time counts from the moment at which its call was due. One row for each of p50, p99 and
    /// p99.9; `floors` are theirs.
    pub(crate) async fn open_loop<A, FA, B, FB>(
        &mut self,
        name: &str,
        peer: &str,
        floors: [f64; 3],
        ours: A,
        theirs: B,
    ) -> anyhow::Result<()>
    where
        A: Fn(usize) -> FA + Clone + Send + Sync + 'static,
        FA: Future<Output = anyhow::Result<()>> + Send + 'static,
        B: Fn(usize) -> FB + Clone + Send + Sync + 'static,
        FB: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        if !self.only.is_empty() && !self.only.iter().any(|part| name.contains(part.as_str())) {
            return Ok(());
        }
        let (a, b) = (
            self.drive(self.length, 64, &ours).await?.rate,
            self.drive(self.length, 64, &theirs).await?.rate,
        );
        let rate = a.min(b) / 2.0;
        let mut quantiles: [[Vec<f64>; 2]; 3] = Default::default();
        for round in 0..self.rounds {
            let (a, b) = if round % 2 == 0 {
                let a = due(self.length, rate, &ours).await?;
                (a, due(self.length, rate, &theirs).await?)
            } else {
                let b = due(self.length, rate, &theirs).await?;
                (due(self.length, rate, &ours).await?, b)
            };
            for (n, [ours, theirs]) in quantiles.iter_mut().enumerate() {
                ours.push(a[n]);
                theirs.push(b[n]);
            }
        }
        let titles = ["p50", "p99", "p99.9"];
        for ((title, floor), [ours, theirs]) in titles.iter().zip(floors).zip(quantiles) {
            let name = format!("{name}, {title} at {rate:.0}/s");
            self.costs_of(&name, peer, Unit::Micros, floor, ours, theirs);
        }
        Ok(())
    }

    /// One measurement of one contestant.
    async fn drive<F, Fut>(&self, length: Duration, tasks: usize, work: &F) -> anyhow::Result<Drive>
    where
        F: Fn(usize) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send,
    {
        let before = servers_micros(&self.servers.list())?;
        let (rate, done, client) = drive(length, tasks, work).await?;
        let server = (servers_micros(&self.servers.list())? - before) / done;
        let cpu = Cpu { client, server };
        Ok(Drive { rate, cpu })
    }

    fn rounds(
        &mut self,
        name: &str,
        peer: &str,
        floor: f64,
        ours: Vec<f64>,
        theirs: Vec<f64>,
        cpu: Option<(Cpu, Cpu)>,
    ) {
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a / b).collect();
        let interval = Some(interval(&ratios));
        self.record(Row {
            family: self.family.clone(),
            name: name.to_owned(),
            peer: peer.to_owned(),
            unit: Unit::PerSecond,
            ours: median(ours),
            theirs: median(theirs),
            ratio: median(ratios),
            interval,
            cpu,
            floor,
            goal: crate::goal::of(name, peer),
        });
    }

    /// Records a comparison of rates that was measured elsewhere: more is better on both sides.
    pub(crate) fn row(&mut self, name: &str, peer: &str, ours: f64, theirs: f64, floor: f64) {
        self.single(name, peer, Unit::PerSecond, ours, theirs, floor);
    }

    /// Records a comparison of costs: less is better on both sides.
    pub(crate) fn cost(
        &mut self,
        name: &str,
        peer: &str,
        unit: Unit,
        ours: f64,
        theirs: f64,
        floor: f64,
    ) {
        self.single(name, peer, unit, ours, theirs, floor);
    }

    fn single(&mut self, name: &str, peer: &str, unit: Unit, ours: f64, theirs: f64, floor: f64) {
        let ratio = match unit {
            Unit::PerSecond => ours / theirs,
            Unit::Micros | Unit::Bytes => theirs / ours,
        };
        self.record(Row {
            family: self.family.clone(),
            name: name.to_owned(),
            peer: peer.to_owned(),
            unit,
            ours,
            theirs,
            ratio,
            interval: None,
            cpu: None,
            floor,
            goal: crate::goal::of(name, peer),
        });
    }

    fn record(&mut self, row: Row) {
        if self.json {
            println!(
                "{}",
                serde_json::json!({
                    "family": row.family, "name": row.name, "peer": row.peer, "unit": row.unit.as_str(),
                    "ours": row.ours, "theirs": row.theirs, "ratio": row.ratio,
                    "interval": row.interval.map(|(low, high)| [low, high]),
                    "client_cpu_us": row.cpu.map(|(ours, theirs)| [ours.client, theirs.client]),
                    "server_cpu_us": row.cpu.map(|(ours, theirs)| [ours.server, theirs.server]),
                    "floor": row.floor, "goal": row.goal, "ok": row.held(),
                })
            );
        } else {
            let interval = row.interval.map_or(String::new(), |(low, high)| {
                format!(" ({low:.2} to {high:.2})")
            });
            eprintln!(
                "  {} / {}: {:.2}{interval}, floor {}",
                row.name, row.peer, row.ratio, row.floor
            );
        }
        self.rows.push(row);
    }

    /// Prints the table, writes the report if one is wanted, and says whether every ratio reached its floor.
    pub(crate) fn finish(self, report: Option<&std::path::Path>) -> anyhow::Result<bool> {
        let held = self.rows.iter().all(Row::held);
        if !self.json {
            println!("{}", crate::report::table(&self.rows));
        }
        if let Some(path) = report {
            crate::report::write(path, &self.rows, &self.notes, self.rounds, self.length)?;
        }
        Ok(held)
    }
}

/// Lets `tasks` tasks each call `work` repeatedly: the rate, how often it was called, and the CPU time of this process
/// per call in microseconds.
async fn drive<F, Fut>(length: Duration, tasks: usize, work: &F) -> anyhow::Result<(f64, f64, f64)>
where
    F: Fn(usize) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut set = tokio::task::JoinSet::new();
    let (started, cpu) = (Instant::now(), cpu_micros()?);
    for task in 0..tasks {
        let (stop, done, work) = (stop.clone(), done.clone(), work.clone());
        set.spawn(async move {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                work(task).await?;
                count += 1;
                // Work that never waits must still let the timer run.
                if count % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            done.fetch_add(count, Ordering::Relaxed);
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(length).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = set.join_next().await {
        ended??;
    }
    let rate = done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    let done = (done.load(Ordering::Relaxed) as f64).max(1.0);
    Ok((rate, done, (cpu_micros()? - cpu) / done))
}

/// Starts calls at a fixed rate, whether or not earlier ones have been answered: p50, p99 and p99.9 in microseconds, each
/// from the moment at which the call was due.
async fn due<F, Fut>(length: Duration, rate: f64, work: &F) -> anyhow::Result<[f64; 3]>
where
    F: Fn(usize) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let started = Instant::now();
    let count = (length.as_secs_f64() * rate).ceil() as usize;
    let mut set = tokio::task::JoinSet::new();
    for n in 0..count.max(1) {
        let due = started + Duration::from_secs_f64(n as f64 / rate);
        // The timer is no finer than a millisecond: calls that are due start together.
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        }
        let call = work(n % 64);
        set.spawn(async move {
            call.await?;
            anyhow::Ok(due.elapsed().as_secs_f64() * 1e6)
        });
    }
    let mut times = Vec::with_capacity(count);
    while let Some(time) = set.join_next().await {
        times.push(time??);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
    Ok([at(0.5), at(0.99), at(0.999)])
}

/// CPU time that this process has used, in microseconds.
fn cpu_micros() -> anyhow::Result<f64> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    Ok(micros(usage.user_time()) + micros(usage.system_time()))
}

/// CPU time that all threads of these processes have used, in microseconds.
fn servers_micros(pids: &[u32]) -> anyhow::Result<f64> {
    let mut nanos = 0.0;
    for pid in pids {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let ran = stat.split_whitespace().next().unwrap_or("0");
            nanos += ran.parse::<f64>()?;
        }
    }
    Ok(nanos / 1e3)
}

/// The 95 % interval of the median, from the order of the values.
fn interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let reach = 0.98 * n.sqrt();
    let low = (n / 2.0 - reach).floor().max(0.0) as usize;
    let high = ((n / 2.0 + reach).ceil() as usize).min(sorted.len() - 1);
    (sorted[low], sorted[high])
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
