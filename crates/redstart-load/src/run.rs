//! One pattern under load, from the first key to the last that is removed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redstart::{Store, key::slot};

use crate::{
    Live, Pace, Pattern, Settings,
    cap::{Gate, MEMORY},
    drive::{Driven, Load, drive},
    error::{Error, Result},
    footprint::{self, Footprint},
    report::{CommandCost, Hottest, LargestKey, Report, build, interval, today},
    server::{Figures, Idle, Servers},
    workload::{AnyWorkload, Bed, Op},
};

/// Operations of one client before the load, which warm up connections and scripts and tell the round trips.
const CALIBRATION: u64 = 20;
/// How long a check may take at the end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Puts one pattern under load, checks its promise, and removes its keys.
///
/// Keys are in a namespace of the run's own; no other key is touched. `live` may be looked at meanwhile, and stops the run.
///
/// # Errors
///
/// Invalid settings, and failures of the store before and after the load. Errors of the operations are part of the
/// report.
///
/// # Cancel safety
///
/// If the future is dropped the keys stay: stop the run by [`Live::stop`] instead, or [`sweep`](crate::sweep) the namespace
/// that [`namespace`] gave.
pub async fn run(
    url: &str,
    namespace: &str,
    pattern: &Pattern,
    settings: &Settings,
    live: &Arc<Live>,
) -> Result<Report> {
    settings.check()?;
    let store = Store::connect(url).await?;
    run_on(&store, namespace, pattern, settings, live).await
}

/// A namespace for a run: 64 random bits, so that nobody else's keys are in it.
pub fn namespace() -> String {
    format!("bench-{:016x}", rand::random::<u64>())
}

/// [`run`] on a store that is open.
///
/// # Errors
///
/// As [`run`].
///
/// # Cancel safety
///
/// As [`run`].
pub async fn run_on(
    store: &Store,
    namespace: &str,
    pattern: &Pattern,
    settings: &Settings,
    live: &Arc<Live>,
) -> Result<Report> {
    settings.check()?;
    let servers = Arc::new(Box::pin(Servers::open(store)).await?);
    let namespace = format!("{namespace}-{}", pattern.name().replace('_', "-"));
    let bed = Bed::new(store, &namespace, settings, Gate::new(settings, live));
    // Boxed: futures of scripts are deep, and those who await this one have futures of their own.
    let measured = Box::pin(measure(&servers, &bed, pattern, settings, live)).await;
    let swept = Box::pin(footprint::sweep(store, &namespace)).await;
    let report = measured?;
    swept?;
    Ok(report)
}

async fn measure(
    servers: &Arc<Servers>,
    bed: &Bed,
    pattern: &Pattern,
    settings: &Settings,
    live: &Arc<Live>,
) -> Result<Report> {
    let writes = settings.writes.unwrap_or(pattern.default_writes());
    let memory = servers.memory().await;
    let guard = MemoryGuard::start(servers.clone(), live.clone(), memory, settings.max_memory);
    let opened = tokio::select! {
        biased;
        () = live.ending() => None,
        opened = pattern.open(bed) => Some(opened?),
    };
    let mut report = Report {
        pattern: pattern.name().to_owned(),
        invariant: pattern.invariant().to_owned(),
        entity: pattern.entity().to_owned(),
        writes,
        server: servers.version().await,
        masters: servers.len(),
        measured: today(),
        build: build(),
        processes: 1,
        ..Report::default()
    };
    asked(&mut report, settings, bed);
    let Some(opened) = opened else {
        report.stopped = live.stopped();
        let why = report.stopped.as_deref().unwrap_or_default();
        report.unchecked = Some(format!("the run ended before the load began: {why}"));
        return Ok(report);
    };
    let workload: Arc<dyn AnyWorkload> = Arc::from(opened);
    live.stage().await;
    let quiet = guard.quiet().await;
    report.round_trips_per_op = calibrate(servers, &*workload, bed, writes).await;
    drop(quiet);
    live.stage().await;
    let idle = watch_idle(servers, settings.idle).await;
    live.stage().await;
    let before = servers.figures().await;
    let load = Load {
        writes,
        keys: bed.chosen(),
        base: CALIBRATION,
        cap: bed.gate.rate(),
    };
    let driven = drive(workload.clone(), settings, load, live).await;
    // What the servers spent is that of all who put load on them, so all have to be done.
    live.stage().await;
    let mut figures = servers.figures().await.since(&before);
    report.memory_unwatched = guard.is_blind();
    drop(guard);
    figures.without(&idle, driven.took);
    speed(&mut report, live, &driven);
    cost(&mut report, bed, &figures, &driven);
    let checked = tokio::time::timeout(PATIENCE, workload.finish()).await;
    verdict(&mut report, &*workload, checked);
    let target = report.hottest.as_ref().map(|hottest| hottest.entity);
    let mark = target.and_then(|target| workload.mark(target));
    let print = footprint::measure(&bed.store, &bed.namespace, mark.as_deref()).await?;
    size(&mut report, &*workload, bed, &print, mark);
    Ok(report)
}

/// What the servers spend per second while nothing happens but that they are watched, as during the load.
async fn watch_idle(servers: &Servers, time: Duration) -> Idle {
    if time.is_zero() || servers.are_embedded() {
        return Idle::default();
    }
    let before = servers.figures().await;
    let begun = std::time::Instant::now();
    tokio::time::sleep(time).await;
    let spent = servers.figures().await.since(&before);
    Idle::new(&spent, begun.elapsed())
}

/// A few operations of one client. What a server reads meanwhile are its requests: a pipeline is one. All of them are on
/// keys that the first ones have used: in use, a cache has its entries and a lock its fence.
async fn calibrate(
    servers: &Servers,
    workload: &dyn AnyWorkload,
    bed: &Bed,
    writes: f64,
) -> Option<f64> {
    let op = |number: u64| Op {
        client: 0,
        number,
        key: number % (CALIBRATION / 4) % bed.keys,
        // Evenly spread, so that the operations that are counted have the share of all.
        write: ((number + 1) as f64 * writes).floor() > (number as f64 * writes).floor(),
        random: number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7,
    };
    // The first operations load scripts.
    for number in 0..CALIBRATION / 4 {
        if !bed.gate.turn().await {
            return None;
        }
        let _ = workload.operate(op(number)).await;
    }
    let before = servers.figures().await;
    for number in CALIBRATION / 4..CALIBRATION {
        if !bed.gate.turn().await {
            return None;
        }
        let _ = workload.operate(op(number)).await;
    }
    let reads = servers.figures().await.since(&before).reads?;
    // Looking is four requests to each server, of which the last is after the count.
    let own = 4 * servers.len() as u64;
    let operations = (CALIBRATION - CALIBRATION / 4) as f64;
    Some(reads.saturating_sub(own) as f64 / operations)
}

/// Stops the run when the server's memory has grown too much; until it is dropped.
struct MemoryGuard {
    task: tokio::task::AbortHandle,
    asking: Arc<tokio::sync::Mutex<()>>,
    told: Arc<AtomicBool>,
}

impl MemoryGuard {
    /// `before` is what was in use before the run. If the server did not tell, it is what it tells first: growth until then is not
    /// seen, but a server with much memory in use is not taken for one that has grown.
    fn start(servers: Arc<Servers>, live: Arc<Live>, before: Option<u64>, most: u64) -> Self {
        let asking = Arc::new(tokio::sync::Mutex::new(()));
        let told = Arc::new(AtomicBool::new(before.is_some()));
        let (turn, heard) = (asking.clone(), told.clone());
        let task = tokio::spawn(async move {
            let mut before = before;
            loop {
                tokio::time::sleep(Duration::from_millis(250)).await;
                let _asking = turn.lock().await;
                let Some(now) = servers.memory().await else {
                    continue;
                };
                heard.store(true, Ordering::Relaxed);
                if now > before.get_or_insert(now).saturating_add(most) {
                    live.stop(MEMORY);
                    return;
                }
            }
        });
        Self {
            task: task.abort_handle(),
            asking,
            told,
        }
    }

    /// Whether the server has never told its memory.
    fn is_blind(&self) -> bool {
        !self.told.load(Ordering::Relaxed)
    }

    /// Asks nothing while what it returns is kept: its requests would be counted.
    async fn quiet(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.asking.lock().await
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What was asked for, and what of it was not possible.
fn asked(report: &mut Report, settings: &Settings, bed: &Bed) {
    report.clients = settings.pace.clients();
    report.keys = bed.chosen();
    report.keys_wanted = Some(settings.keys).filter(|wanted| *wanted != report.keys);
    report.spread = settings.spread.to_string();
    report.payload = settings.payload;
    report.max_rate = settings.max_rate;
    match settings.pace {
        Pace::Closed { .. } => report.pace = "closed".to_owned(),
        Pace::Open { rate, .. } => {
            report.pace = "open".to_owned();
            report.rate = Some(rate);
        }
    }
}

fn speed(report: &mut Report, live: &Live, driven: &Driven) {
    let histogram = live.histogram();
    let micros = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    let progress = live.progress();
    report.operations = progress.operations;
    report.seconds = driven.took.as_secs_f64();
    let succeeded = progress.operations.saturating_sub(progress.errors) as f64;
    report.ops_per_second = succeeded / report.seconds.max(1e-9);
    let some = |of: hdrhistogram::Histogram<u64>, quantile: f64| {
        (!of.is_empty()).then(|| of.value_at_quantile(quantile) as f64 / 1e3)
    };
    report.failed_p50_us = some(live.failures(), 0.5);
    report.failed_p99_us = some(live.failures(), 0.99);
    report.timer_p99_us = some(live.lateness(), 0.99);
    report.p50_us = micros(0.5);
    report.p99_us = micros(0.99);
    report.p999_us = micros(0.999);
    report.max_us = histogram.max() as f64 / 1e3;
    report.quantiles = [
        0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0,
    ]
    .into_iter()
    .map(|quantile| (quantile, micros(quantile)))
    .collect();
    report.histogram = histogram
        .iter_recorded()
        .map(|value| (value.value_iterated_to(), value.count_at_value()))
        .collect();
    report.interval = interval(&driven.slices);
    report.slices = driven.slices.clone();
    report.errors = live.errors();
    report.dropped = driven.dropped;
    report.stopped = live.stopped();
    if let Some((entity, share)) = live.hottest() {
        report.hottest = Some(Hottest {
            entity,
            share,
            key: None,
            slot: None,
        });
    }
}

fn cost(report: &mut Report, bed: &Bed, figures: &Figures, driven: &Driven) {
    let operations = (report.operations as f64).max(1.0);
    let own = driven.cpu.map(|cpu| cpu.as_secs_f64() * 1e6);
    report.client_us_per_op = own.map(|micros| micros / operations);
    report.server_us_per_op = match bed.store.is_embedded() {
        true => report.client_us_per_op,
        false => figures.cpu_us.map(|micros| micros / operations),
    };
    let moved = figures.net_in + figures.net_out;
    report.network_bytes_per_op = (moved > 0).then(|| moved as f64 / operations);
    report.messages_per_op = (!figures.commands.is_empty()).then(|| {
        let calls = |command: &str| figures.commands.get(command).map_or(0, |(calls, _)| *calls);
        (calls("publish") + calls("spublish")) as f64 / operations
    });
    let mut commands: Vec<_> = figures
        .commands
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "info"))
        .collect();
    commands.sort_by_key(|(_, (_, micros))| std::cmp::Reverse(*micros));
    report.commands = commands
        .into_iter()
        .take(8)
        .map(|(name, (calls, micros))| CommandCost {
            command: name.clone(),
            calls_per_op: *calls as f64 / operations,
            us_per_call: *micros as f64 / (*calls).max(1) as f64,
        })
        .collect();
    let micros = (driven.took.as_secs_f64() * 1e6).max(1.0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    // Where the system does not tell what each thread does, all of them are taken to do the same.
    report.client_busy = driven.busiest.or(own.map(|own| own / micros / cores));
    // A server carries out commands in one thread.
    let nodes = figures.cpu_of_nodes.iter().copied();
    report.server_busy = nodes.reduce(f64::max).map(|most| most / micros);
    report.limited_by = report.limit().to_owned();
}

type Checked = std::result::Result<redstart::Result<()>, tokio::time::error::Elapsed>;

fn verdict(report: &mut Report, workload: &dyn AnyWorkload, checked: Checked) {
    let claims = workload.claims();
    report.violations = claims.broken();
    report.broken = claims.first().or_else(|| match checked {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("could not be checked: {error}")),
        Err(_) => Some(format!("could not be checked within {PATIENCE:?}")),
    });
    report.figure = workload.figure();
    report.latency_of = workload.latency_of().map(str::to_owned);
    let failed: u64 = report.errors.values().sum();
    report.unchecked = claims.why_unchecked();
    // Where most operations do not happen, the promise is not put to the test.
    if report.unchecked.is_none() && failed * 10 > report.operations {
        report.unchecked = Some(match failed >= report.operations {
            true => "no operation succeeded".to_owned(),
            false => format!("{failed} of {} operations failed", report.operations),
        });
    }
    report.held = report.broken.is_none() && report.unchecked.is_none();
}

fn size(
    report: &mut Report,
    workload: &dyn AnyWorkload,
    bed: &Bed,
    print: &Footprint,
    mark: Option<String>,
) {
    report.entities = workload.entities();
    report.keys_used = print.keys;
    report.slots_used = print.slots;
    if report.entities > 0 && print.keys > 0 {
        report.bytes_per_entity = print.bytes.map(|bytes| bytes / report.entities as f64);
    }
    let short = |key: &str| key.replace(&format!("{}:", bed.namespace), "");
    report.largest_key = print.largest.as_ref().map(|(key, bytes)| LargestKey {
        key: short(key),
        bytes: *bytes,
        slot: slot(key.as_bytes()),
    });
    // A queue that was drained and a channel have no key at the end; they have a slot.
    let tag = mark.filter(|mark| mark.ends_with('}'));
    let key = print.marked.as_deref().map(short).or(tag);
    if let (Some(hottest), Some(key)) = (&mut report.hottest, key) {
        hottest.slot = Some(slot(key.as_bytes()));
        hottest.key = Some(key);
    }
}

/// Looks for the load beyond which more brings little more: doubles the clients of a closed loop, or the rate of an open
/// one, and applies each step for the length of the settings.
///
/// # Errors
///
/// As [`run`].
///
/// # Cancel safety
///
/// As [`run`].
pub async fn ramp(
    store: &Store,
    namespace: &str,
    pattern: &Pattern,
    settings: &Settings,
    live: impl Fn() -> Arc<Live>,
) -> Result<Report> {
    let mut reports: Vec<Report> = Vec::new();
    let mut steps = Vec::new();
    for step in 0..12 {
        let (pace, load) = match settings.pace {
            Pace::Closed { clients } => {
                let now = 1usize << step;
                if now > clients {
                    break;
                }
                (Pace::Closed { clients: now }, now as f64)
            }
            Pace::Open { rate, in_flight } => {
                let now = rate / 64.0 * f64::from(1 << step);
                if now > rate * 1.001 {
                    break;
                }
                let pace = Pace::Open {
                    rate: now,
                    in_flight,
                };
                (pace, now)
            }
        };
        let settings = Settings {
            pace,
            ..settings.clone()
        };
        let report = Box::pin(run_on(store, namespace, pattern, &settings, &live())).await?;
        steps.push(crate::report::RampStep {
            load,
            ops_per_second: report.ops_per_second,
            p99_us: report.p99_us,
        });
        let interrupted = report.stopped.is_some();
        reports.push(report);
        let found = crate::report::knee(&steps).map(|knee| knee.load);
        // Two steps beyond the knee are enough to see it.
        if interrupted || found.is_some_and(|knee| load >= 4.0 * knee) {
            break;
        }
    }
    let knee = crate::report::knee(&steps);
    let at = knee
        .as_ref()
        .and_then(|knee| steps.iter().position(|step| step.load == knee.load));
    let held = reports.iter().all(|report| report.held);
    let broken = reports.iter().find_map(|report| report.broken.clone());
    let unchecked = reports.iter().find_map(|report| report.unchecked.clone());
    let Some(mut report) = at.map(|at| reports.swap_remove(at)) else {
        return Err(Error::config("a ramp needs at least one client"));
    };
    report.held = held;
    report.broken = broken;
    report.unchecked = unchecked;
    report.ramp = steps;
    report.knee = knee;
    Ok(report)
}

/// Puts the form of a pattern that people write by hand under the same load, and adds what it did to the report of ours.
///
/// # Errors
///
/// As [`run`], and if there is no such form.
///
/// # Cancel safety
///
/// As [`run`].
pub async fn compare_naive(
    store: &Store,
    namespace: &str,
    report: &mut Report,
    settings: &Settings,
    live: &Arc<Live>,
) -> Result<()> {
    let Some((form, counted)) = crate::workload::naive(&report.pattern) else {
        return Err(Error::config(format!(
            "there is no naive form of {}",
            report.pattern
        )));
    };
    let wrong = Box::pin(run_on(store, namespace, form, settings, live)).await?;
    let harm = match (
        &*wrong.pattern,
        wrong.bytes_per_entity,
        report.bytes_per_entity,
    ) {
        ("unique_visitors", Some(set), Some(ours)) => {
            format!("{set:.0} bytes per page and day, against {ours:.0}")
        }
        ("leaderboard", ..) => format!(
            "{} {counted}; {:.0} operations per second, against {:.0}",
            wrong.violations, wrong.ops_per_second, report.ops_per_second
        ),
        _ => format!(
            "{} {counted}, in {} operations",
            wrong.violations, wrong.operations
        ),
    };
    report.naive = Some(crate::report::NaiveReport {
        form: form.invariant().to_owned(),
        harm,
        wrong: wrong.violations,
        ours_wrong: report.violations,
        counted: counted.to_owned(),
        ops_per_second: wrong.ops_per_second,
        operations: wrong.operations,
        bytes_per_entity: wrong.bytes_per_entity,
    });
    Ok(())
}
