//! The loop that applies the load and measures it.
//!
//! In an open loop, operation *n* is due at `start + n / rate`. A client that takes it later than that, because all
//! clients were busy with a store that did not answer, counts the delay: the stall of a server shows in the latency of
//! every operation that was due during it, not only in that of the few that were under way ("coordinated omission").
//! So does a late wake-up by the timer of this process; how late it was is recorded beside the latencies.
//!
//! Operations that fail are counted, and their latencies are kept apart: a store that refuses at once is not fast.
//!
//! What was due during a stall begins as soon as a client is free, unless there is a cap on the rate: then it waits for
//! its turn, and its latency says so.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use crate::{
    KeyChoice, Length, Pace, Settings,
    cap::RateCap,
    thread::Threads,
    workload::{AnyWorkload, Op},
};

/// The longest latency that is recorded exactly, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;
/// Histograms that clients share; one for each would take 300 KB per client.
const SHARDS: usize = 16;
/// Targets of which every operation is counted, to find the hottest. Where there are more, the hottest is among the first of
/// them, or none is hot.
const COUNTED: usize = 1 << 16;

/// A run as it goes on; cheap to look at from another task.
#[derive(Debug)]
pub struct Live {
    shards: Vec<Mutex<Histogram<u64>>>,
    /// Of operations that failed.
    failures: Mutex<Histogram<u64>>,
    /// How late wake-ups were.
    lateness: Mutex<Histogram<u64>>,
    done: AtomicU64,
    failed: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
    hits: Vec<AtomicU64>,
    stop: AtomicBool,
    stopped: Mutex<Option<String>>,
    ending: Notify,
    stages: Option<Stages>,
}

/// Where a run that is one of several waits for the others.
#[derive(Debug)]
struct Stages {
    reached: watch::Sender<usize>,
    allowed: watch::Sender<usize>,
}

/// What a run has done so far.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Operations that ended, failed ones included.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
}

impl Default for Live {
    fn default() -> Self {
        Self::new()
    }
}

impl Live {
    /// For one run.
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(histogram())).collect(),
            failures: Mutex::new(histogram()),
            lateness: Mutex::new(histogram()),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            errors: Mutex::default(),
            hits: (0..COUNTED).map(|_| AtomicU64::new(0)).collect(),
            stop: AtomicBool::new(false),
            stopped: Mutex::default(),
            ending: Notify::new(),
            stages: None,
        }
    }

    /// For one of several runs that put load on the same server together: at the end of each [stage](Self::STAGES) the run
    /// waits until [`go_on`](Self::go_on) has been called once more.
    pub fn in_stages() -> Self {
        Self {
            stages: Some(Stages {
                reached: watch::channel(0).0,
                allowed: watch::channel(0).0,
            }),
            ..Self::new()
        }
    }

    /// What a run does before its end, stage by stage: it prepares its entities, counts round trips with one client, watches
    /// the server without load, and applies the load. What it counts in one stage would be wrong if another run were in
    /// the next one; of those that count round trips only one may be in that stage.
    pub const STAGES: [&'static str; 4] = ["prepared", "calibrated", "watched", "loaded"];

    /// Waits until the run has reached the end of so many stages. Returns at once if it does not wait in stages.
    pub async fn reached(&self, stages: usize) {
        if let Some(own) = &self.stages {
            let _ = own
                .reached
                .subscribe()
                .wait_for(|reached| *reached >= stages)
                .await;
        }
    }

    /// Lets the run begin its next stage.
    pub fn go_on(&self) {
        if let Some(own) = &self.stages {
            own.allowed.send_modify(|allowed| *allowed += 1);
        }
    }

    /// The end of a stage.
    pub(crate) async fn stage(&self) {
        if let Some(own) = &self.stages {
            own.reached.send_modify(|reached| *reached += 1);
            let reached = *own.reached.borrow();
            let _ = own
                .allowed
                .subscribe()
                .wait_for(|allowed| *allowed >= reached)
                .await;
        }
    }

    /// What has been done so far.
    pub fn progress(&self) -> Progress {
        Progress {
            operations: self.done.load(Ordering::Relaxed),
            errors: self.failed.load(Ordering::Relaxed),
        }
    }

    /// Latency so far, in microseconds: the median and the 99th percentile.
    pub fn latency(&self) -> (f64, f64) {
        let histogram = self.histogram();
        let micros = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        (micros(0.5), micros(0.99))
    }

    /// Ends the run early.
    pub fn stop(&self, reason: &str) {
        self.stopped.lock().get_or_insert_with(|| reason.to_owned());
        self.stop.store(true, Ordering::SeqCst);
        self.ending.notify_waiters();
    }

    /// Waits until the run is to end early.
    pub(crate) async fn ending(&self) {
        let ending = self.ending.notified();
        if !self.is_stopped() {
            ending.await;
        }
    }

    /// Sleeps; false if the run is to end early.
    async fn sleep_until(&self, until: Instant) -> bool {
        tokio::select! {
            biased;
            () = self.ending() => false,
            () = tokio::time::sleep_until(until.into()) => true,
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn stopped(&self) -> Option<String> {
        self.stopped.lock().clone()
    }

    pub(crate) fn histogram(&self) -> Histogram<u64> {
        let mut whole = histogram();
        for shard in &self.shards {
            // The same bounds, so adding cannot fail.
            let _ = whole.add(&*shard.lock());
        }
        whole
    }

    /// The latencies of operations that failed.
    pub(crate) fn failures(&self) -> Histogram<u64> {
        self.failures.lock().clone()
    }

    /// How late the timer of this process was.
    pub(crate) fn lateness(&self) -> Histogram<u64> {
        self.lateness.lock().clone()
    }

    pub(crate) fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().clone()
    }

    /// The target with most operations, among those that are counted, and its share of all operations.
    pub(crate) fn hottest(&self) -> Option<(u64, f64)> {
        let hits = self.hits.iter().map(|hits| hits.load(Ordering::Relaxed));
        let all = self.done.load(Ordering::Relaxed);
        let (target, most) = hits.enumerate().max_by_key(|(_, hits)| *hits)?;
        (most > 0).then(|| (target as u64, most as f64 / all as f64))
    }

    fn record(&self, client: usize, target: u64, took: Duration, outcome: &redstart::Result<()>) {
        let histogram = match outcome {
            Ok(()) => &self.shards[client % SHARDS],
            Err(_) => &self.failures,
        };
        histogram.lock().saturating_record(nanos(took));
        if let Some(hits) = self.hits.get(target as usize) {
            hits.fetch_add(1, Ordering::Relaxed);
        }
        if let Err(error) = outcome {
            self.failed.fetch_add(1, Ordering::Relaxed);
            *self.errors.lock().entry(kind(error)).or_default() += 1;
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// As histograms have it.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos())
        .unwrap_or(u64::MAX)
        .clamp(1, LONGEST)
}

fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, LONGEST, 3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants"),
    }
}

/// What kind of failure an error is.
fn kind(error: &redstart::Error) -> String {
    if error.is_timeout() {
        "timeout".to_owned()
    } else if error.is_in_doubt() {
        "in doubt".to_owned()
    } else if error.is_unavailable() {
        "unavailable".to_owned()
    } else if let Some(code) = error.server_code() {
        format!("server {code}")
    } else if error.is_config() {
        "config".to_owned()
    } else {
        "other".to_owned()
    }
}

/// What a run did.
pub(crate) struct Driven {
    pub(crate) took: Duration,
    /// Operations per second in each slice of the run.
    pub(crate) slices: Vec<f64>,
    /// Operations of an open loop that were due and never began.
    pub(crate) dropped: u64,
    /// CPU time of this process, if the system tells.
    pub(crate) cpu: Option<Duration>,
    /// The share of the time in which the busiest thread of this process ran or waited for a core, if the system tells.
    pub(crate) busiest: Option<f64>,
}

struct Shared {
    workload: Arc<dyn AnyWorkload>,
    settings: Settings,
    writes: f64,
    /// Keys that operations choose from.
    keys: u64,
    cap: Option<Arc<RateCap>>,
    live: Arc<Live>,
    tickets: AtomicU64,
    /// The number of the first operation.
    base: u64,
    start: Instant,
    /// No operation is due after this.
    end: Option<Instant>,
}

/// What settings do not say of a load.
pub(crate) struct Load {
    /// The share of writes.
    pub(crate) writes: f64,
    /// Keys that operations choose from.
    pub(crate) keys: u64,
    /// The number of the first operation.
    pub(crate) base: u64,
    pub(crate) cap: Option<Arc<RateCap>>,
}

/// Applies the load until its end.
pub(crate) async fn drive(
    workload: Arc<dyn AnyWorkload>,
    settings: &Settings,
    load: Load,
    live: &Arc<Live>,
) -> Driven {
    let start = Instant::now();
    let end = match settings.length {
        Length::Time(time) => Some(start + time),
        Length::Operations(_) => None,
    };
    let shared = Arc::new(Shared {
        workload,
        settings: settings.clone(),
        writes: load.writes,
        keys: load.keys,
        cap: load.cap,
        live: live.clone(),
        tickets: AtomicU64::new(0),
        base: load.base,
        start,
        end,
    });
    let (cpu, threads) = (process_cpu(), Threads::now());
    let mut clients = JoinSet::new();
    for client in 0..settings.pace.clients() {
        clients.spawn(run_client(client, shared.clone()));
    }
    let slices = slice(&shared, &mut clients).await;
    let took = start.elapsed();
    let used = process_cpu().zip(cpu).map(|(after, before)| after - before);
    let busiest = threads.zip(Threads::now());
    let busiest = busiest.and_then(|(before, after)| after.busiest_since(&before, took));
    Driven {
        took,
        slices,
        dropped: drop_late(&shared),
        cpu: used,
        busiest,
    }
}

/// Waits for the clients, and meanwhile notes how many operations end in each slice of time.
async fn slice(shared: &Shared, clients: &mut JoinSet<()>) -> Vec<f64> {
    let every = match shared.settings.length {
        Length::Time(time) => (time / 20).max(Duration::from_millis(20)),
        Length::Operations(_) => Duration::from_millis(50),
    };
    // An open loop that cannot keep up does not run forever.
    let patience = shared.end.map(|end| {
        end + (end - shared.start).clamp(Duration::from_secs(2), Duration::from_secs(30))
    });
    let mut slices = Vec::new();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let (mut last, mut since) = (0, Instant::now());
    loop {
        tokio::select! {
            ended = clients.join_next() => if ended.is_none() { break },
            _ = ticks.tick() => {
                let (now, progress) = (Instant::now(), shared.live.progress());
                // The two are counted one after the other.
                let done = progress.operations.saturating_sub(progress.errors).max(last);
                if shared.end.is_none_or(|end| now <= end + every) {
                    let seconds = (now - since).as_secs_f64().max(1e-9);
                    slices.push((done - last) as f64 / seconds);
                }
                (last, since) = (done, now);
                if patience.is_some_and(|patience| now > patience) {
                    shared.live.stop("the store did not keep up with the rate");
                }
            }
        }
    }
    slices
}

async fn run_client(client: usize, shared: Arc<Shared>) {
    let settings = &shared.settings;
    let seed = settings.seed ^ (client as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut choice = KeyChoice::new(shared.keys, settings.spread, seed);
    let mut count = 0u64;
    // Whether the run is over is seen by the clock that was read last: reading it is a good part of what the loop costs.
    let mut now = Instant::now();
    while let Some((ticket, due)) = next(&shared, now).await {
        let op = Op {
            client,
            number: shared.base + ticket,
            key: choice.key(),
            write: choice.fraction() < shared.writes,
            random: choice.number(),
        };
        let outcome = shared.workload.operate(op).await;
        now = Instant::now();
        let took = now.saturating_duration_since(due);
        let target = shared.workload.target(&op);
        shared.live.record(client, target, took, &outcome);
        count += 1;
        // An operation of the embedded engine never waits, and others must get their turn.
        if count.is_multiple_of(32) {
            tokio::task::yield_now().await;
        }
        if outcome.is_err() {
            // A store that refuses at once must not turn this loop into a busy one.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The next operation and when it was due; `None` at the end.
async fn next(shared: &Shared, now: Instant) -> Option<(u64, Instant)> {
    if shared.live.is_stopped() {
        return None;
    }
    if matches!(shared.settings.pace, Pace::Closed { .. })
        && shared.end.is_some_and(|end| now >= end)
    {
        return None;
    }
    let ticket = shared.tickets.fetch_add(1, Ordering::Relaxed);
    if let Length::Operations(most) = shared.settings.length
        && ticket >= most
    {
        return None;
    }
    let due = due(shared, ticket);
    if due.zip(shared.end).is_some_and(|(due, end)| due >= end) {
        return None;
    }
    if let Some(due) = due
        && Instant::now() < due
    {
        if !shared.live.sleep_until(due).await {
            return None;
        }
        let late = nanos(due.elapsed());
        shared.live.lateness.lock().saturating_record(late);
    }
    let Some(cap) = &shared.cap else {
        return Some((ticket, due.unwrap_or_else(Instant::now)));
    };
    let now = Instant::now();
    let slot = cap.slot(now);
    // A closed loop is over at its end, however many turns were given out for the time behind it.
    let over = |at: Instant| due.is_none() && shared.end.is_some_and(|end| at >= end);
    let until = match shared.end {
        Some(end) if over(slot) => end,
        _ => slot,
    };
    if until > now && !shared.live.sleep_until(until).await {
        return None;
    }
    let turn = Instant::now();
    (!over(slot) && !over(turn) && !shared.live.is_stopped()).then(|| (ticket, due.unwrap_or(turn)))
}

/// When an operation of an open loop is due.
fn due(shared: &Shared, ticket: u64) -> Option<Instant> {
    match shared.settings.pace {
        Pace::Open { rate, .. } => {
            Some(shared.start + Duration::from_secs_f64(ticket as f64 / rate))
        }
        Pace::Closed { .. } => None,
    }
}

/// Operations of an open loop that were due and never began are counted with the time that they have waited: they would
/// have taken longer still.
fn drop_late(shared: &Shared) -> u64 {
    if !matches!(shared.settings.pace, Pace::Open { .. }) || shared.live.stopped().is_none() {
        return 0;
    }
    let now = Instant::now();
    let end = shared.end.unwrap_or(now).min(now);
    let mut dropped = 0;
    let mut ticket = shared.live.progress().operations;
    let mut shard = shared.live.shards[0].lock();
    while let Some(due) = due(shared, ticket)
        && due < end
        && dropped < 10_000_000
    {
        let waited = u64::try_from((now - due).as_nanos()).unwrap_or(LONGEST);
        shard.saturating_record(waited.clamp(1, LONGEST));
        dropped += 1;
        ticket += 1;
    }
    dropped
}

/// CPU time of this process.
#[cfg(unix)]
pub(crate) fn process_cpu() -> Option<Duration> {
    use nix::sys::{
        resource::{UsageWho, getrusage},
        time::TimeValLike as _,
    };
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(Duration::from_micros(u64::try_from(micros).ok()?))
}

/// CPU time of this process.
#[cfg(not(unix))]
pub(crate) fn process_cpu() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_hottest_is_one_of_all_operations() {
        let live = Live::new();
        for key in 0..1_000_000 {
            live.record(0, key, Duration::from_micros(1), &Ok(()));
        }
        let (_, share) = live.hottest().unwrap();
        assert!((share - 1e-6).abs() < 1e-9, "{share}");
        for _ in 0..1_000_000 {
            live.record(0, 7, Duration::from_micros(1), &Ok(()));
        }
        let (hottest, share) = live.hottest().unwrap();
        assert_eq!((hottest, (share * 1000.0).round()), (7, 500.0));
    }

    #[tokio::test]
    async fn a_run_in_stages_waits_at_the_end_of_each() {
        let live = Arc::new(Live::in_stages());
        let run = tokio::spawn({
            let live = live.clone();
            async move {
                for _ in Live::STAGES {
                    live.stage().await;
                }
            }
        });
        for stage in 1..=Live::STAGES.len() {
            live.reached(stage).await;
            assert!(!run.is_finished());
            live.go_on();
        }
        run.await.unwrap();
    }
}
