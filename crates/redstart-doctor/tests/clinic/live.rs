//! What an examination costs a live workload.
//!
//! Windows of a workload beside examinations alternate with windows without any, and each is compared with its neighbour. What
//! is measured is what the doctor's commands do to the server and to those who wait for it, as if the doctor ran on another
//! machine: the server has one core, the clients another one, and both go before everything else where the system allows it. The
//! doctor runs when the clients do not, so its own work takes no time of theirs.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redstart_doctor::Progress;
use redstart_testkit::{Kind, Server, figure, scale, wait_until};

use crate::{cost::fill, doctor, examine};

/// Clients, and how many requests a second they send together, about, where they pause. Each has one request under way.
const CLIENTS: u64 = 4;
const RATE: f64 = 8000.0;
/// Requests that leave together where they do not pause.
const AT_ONCE: u64 = 16;
/// What a request finds.
const REPLY: &[u8] = b"$3\r\nann\r\n";
/// Pairs of windows from which on an interval says something.
const ENOUGH: u64 = 50;
/// What a stage may cost: by how much the p99 rises, and of the server's core.
const P99: f64 = 1.05;
const CORE: f64 = 0.02;

/// How the clients of a workload send.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    /// With random pauses: their latency is measured, and the server's time.
    Steady,
    /// As fast as they are answered: what the server can do is the reverse of its time per request.
    Flood,
}

/// A workload that goes on until it is dropped.
struct Workload {
    shared: Arc<Shared>,
    clients: Vec<thread::JoinHandle<std::io::Result<()>>>,
}

#[derive(Default)]
struct Shared {
    end: AtomicBool,
    answered: AtomicU64,
    /// In nanoseconds.
    latencies: Mutex<Vec<u64>>,
}

impl Shared {
    fn latencies(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.latencies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workload {
    async fn start(server: &Server, pace: Pace) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let clients = (0..CLIENTS).map(|number| {
            let (addr, shared) = (server.addr(), Arc::clone(&shared));
            thread::spawn(move || {
                on_core(1, pace == Pace::Steady);
                let stream = TcpStream::connect(addr)?;
                stream.set_nodelay(true)?;
                requests(stream, pace, number * 2500, &shared)
            })
        });
        let workload = Self {
            clients: clients.collect(),
            shared,
        };
        wait_until(
            "requests to be answered",
            Duration::from_secs(60),
            async || (workload.shared.answered.load(Ordering::Relaxed) > 100).then_some(()),
        )
        .await?;
        Ok(workload)
    }

    /// What happens from now on for this long.
    async fn window(&self, server: &Server, length: Duration) -> anyhow::Result<Window> {
        self.shared.latencies().clear();
        let answered = || self.shared.answered.load(Ordering::Relaxed);
        let (begun, before, worked) = (Instant::now(), answered(), worked(server));
        tokio::time::sleep(length).await;
        let requests = answered() - before;
        let took = begun.elapsed();
        let worked = worked.and_then(|before| Some(self::worked(server)? - before));
        let mut latencies = std::mem::take(&mut *self.shared.latencies());
        latencies.sort_unstable();
        anyhow::ensure!(requests > 0, "no request was answered in a window");
        let p99 = latencies.get(latencies.len() * 99 / 100).copied();
        Ok(Window {
            p99: p99.unwrap_or(0) as f64 / 1000.0,
            requests: requests as f64,
            worked: worked.map(|worked| worked.as_secs_f64()),
            took: took.as_secs_f64(),
        })
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

/// One client.
fn requests(
    mut stream: TcpStream,
    pace: Pace,
    mut sent: u64,
    shared: &Shared,
) -> std::io::Result<()> {
    let at_once = if pace == Pace::Steady { 1 } else { AT_ONCE };
    let mut reply = vec![0; REPLY.len() * at_once as usize];
    let mut took = Vec::new();
    while !shared.end.load(Ordering::Relaxed) {
        if pace == Pace::Steady {
            // Exponential: requests come at random moments, those of the server's work for the doctor among them.
            let mean = CLIENTS as f64 / RATE;
            let pause = -(1.0 - rand::random::<f64>()).ln() * mean;
            thread::sleep(Duration::from_secs_f64(pause));
        }
        let mut request = String::new();
        for _ in 0..at_once {
            let key = format!("user:{}:name", sent.wrapping_mul(7919) % 10_000);
            request += &format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
            sent += 1;
        }
        let begun = Instant::now();
        stream.write_all(request.as_bytes())?;
        stream.read_exact(&mut reply)?;
        took.push(begun.elapsed().as_nanos() as u64);
        shared.answered.fetch_add(at_once, Ordering::Relaxed);
        if took.len() == 8 {
            shared.latencies().append(&mut took);
        }
    }
    Ok(())
}

/// What one window was like.
struct Window {
    /// In microseconds.
    p99: f64,
    requests: f64,
    /// How long the server had its core, in seconds, where the system tells it.
    worked: Option<f64>,
    took: f64,
}

impl Window {
    /// The server's time per request, in microseconds.
    fn each(&self) -> Option<f64> {
        Some(self.worked? * 1e6 / self.requests)
    }

    /// The part of its core that the server was at work.
    fn busy(&self) -> Option<f64> {
        Some(self.worked? / self.took)
    }
}

/// How long the server's main thread had a core.
fn worked(server: &Server) -> Option<Duration> {
    let pid = server.pid()?;
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).ok()?;
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

fn run(program: &str, args: &[&str]) -> bool {
    let mut command = std::process::Command::new(program);
    let command = command
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Keeps this thread on one core, and before all others if it goes first. Whether that could be done does not matter here: what
/// could be done for the server can be done for it.
fn on_core(core: usize, goes_first: bool) {
    // The number that the kernel gave to this thread.
    let Ok(link) = std::fs::read_link("/proc/thread-self") else {
        return;
    };
    if let Some(id) = link.file_name().and_then(|name| name.to_str()) {
        run("taskset", &["-c", "-p", &core.to_string(), id]);
        prefer(id, goes_first);
    }
}

fn prefer(id: &str, goes_first: bool) -> bool {
    match goes_first {
        true => run("chrt", &["-a", "--fifo", "--pid", "20", id]),
        false => run("chrt", &["-a", "--other", "--pid", "0", id]),
    }
}

/// Examinations one after the other in a thread of their own, at their stage.
struct Examinations {
    stop: Progress,
    thread: thread::JoinHandle<anyhow::Result<Spent>>,
}

/// What examinations did.
#[derive(Default)]
struct Spent {
    commands: u64,
    /// Of MONITOR.
    lines: u64,
}

impl Examinations {
    /// Returns when the stage has begun.
    async fn start(server: &Server, stage: &'static str) -> anyhow::Result<Self> {
        let at = match stage {
            "free" => "asking servers",
            "sampled" => "walking names",
            _ => "observing commands",
        };
        let (begin, mut begun) = tokio::sync::watch::channel(false);
        let stop = Progress::new(move |step| {
            if step.what == at {
                begin.send_replace(true);
            }
        });
        let (url, progress) = (server.url(), stop.clone());
        let thread = thread::spawn(move || {
            on_core(1, false);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let mut spent = Spent::default();
                while !progress.is_stopped() {
                    let examination = match stage {
                        "free" => doctor(&url),
                        "sampled" => doctor(&url).sampled(),
                        _ => doctor(&url).observed(Duration::from_secs(60)),
                    };
                    let report = examination.share(1).build()?.examine(&progress).await?;
                    spent.commands += report.cost.commands;
                    spent.lines += report.cost.lines;
                }
                Ok(spent)
            })
        });
        let wait = Duration::from_secs(100);
        tokio::time::timeout(wait, begun.wait_for(|begun| *begun)).await??;
        if stage == "observed" {
            // Its rests are short at first.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok(Self { stop, thread })
    }

    async fn end(self) -> anyhow::Result<Spent> {
        self.stop.stop();
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await?;
        joined.map_err(|_| anyhow::anyhow!("an examination panicked"))?
    }
}

/// The middle of some numbers, and where the middle is with a certainty of about 95 %.
#[derive(Clone, Copy)]
struct Middle {
    low: f64,
    at: f64,
    high: f64,
}

impl Middle {
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        let mut numbers: Vec<f64> = numbers.collect();
        numbers.sort_by(f64::total_cmp);
        let count = numbers.len() as f64;
        // By the order of the values alone: the middle lies between those so far from it that chance hardly gets there.
        let away = 0.98 * count.sqrt();
        let last = numbers.len().saturating_sub(1);
        let at = |place: f64| numbers.get((place.max(0.0) as usize).min(last)).copied();
        let at = |place| at(place).unwrap_or(f64::NAN);
        Self {
            low: at(count / 2.0 - away),
            at: at(count / 2.0),
            high: at((count / 2.0 + away).floor()),
        }
    }
}

impl std::fmt::Display for Middle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.at, self.low, self.high)
    }
}

/// Windows with examinations, each with the one beside it that has none; and what the examinations did.
async fn pairs(
    server: &Server,
    workload: &Workload,
    stage: &'static str,
    length: Duration,
    rounds: u64,
) -> anyhow::Result<(Vec<(Window, Window)>, Spent)> {
    let (mut pairs, mut all) = (Vec::new(), Spent::default());
    for round in 0..rounds {
        // By turns the one and the other come first.
        let first = match round % 2 {
            0 => Some(workload.window(server, length).await?),
            _ => None,
        };
        let with = if stage == "none" {
            workload.window(server, length).await?
        } else {
            let examinations = Examinations::start(server, stage).await?;
            let window = workload.window(server, length).await;
            let spent = examinations.end().await?;
            all.commands += spent.commands;
            all.lines += spent.lines;
            window?
        };
        let without = match first {
            Some(first) => first,
            None => workload.window(server, length).await?,
        };
        pairs.push((with, without));
    }
    Ok((pairs, all))
}

/// The times of the doctor's own commands by the server's clock, in microseconds, by name.
async fn own_commands(
    server: &Server,
    walk: Duration,
) -> anyhow::Result<BTreeMap<String, Vec<u64>>> {
    for line in [
        "CONFIG SET slowlog-max-len 100000",
        "CONFIG SET slowlog-log-slower-than 0",
        "SLOWLOG RESET",
    ] {
        server.command(&line.split(' ').collect::<Vec<_>>()).await?;
    }
    let examination = doctor(&server.url()).sampled().walk(walk);
    examine(examination.observed(walk / 10).share(1)).await?;
    let never = "CONFIG SET slowlog-log-slower-than -1";
    server
        .command(&never.split(' ').collect::<Vec<_>>())
        .await?;
    let entries: Vec<Vec<redis::Value>> = server.query(&["SLOWLOG", "GET", "100000"]).await?;
    server.command(&["SLOWLOG", "RESET"]).await?;
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for entry in entries {
        let part = |at: usize| entry.get(at).cloned().unwrap_or(redis::Value::Nil);
        let client: String = redis::from_redis_value(part(5))?;
        if client != "redstart-doctor" {
            continue;
        }
        let words: Vec<String> = redis::from_redis_value(part(3))?;
        let has_kinds = ["INFO", "CONFIG", "CLIENT", "XINFO", "MEMORY"];
        let length = match has_kinds.contains(&words[0].as_str()) {
            true => 2,
            false => 1,
        };
        let name: Vec<&str> = words.iter().take(length).map(String::as_str).collect();
        let took = redis::from_redis_value(part(2))?;
        found.entry(name.join(" ")).or_default().push(took);
    }
    found.values_mut().for_each(|times| times.sort_unstable());
    Ok(found)
}

/// Measured are, of each stage: the p99 of a steady workload and the server's time per request, as ratios of neighbouring windows;
/// the server's core that is busy more; and how long each own command took. `none` compares windows without examinations with
/// one another, which is what the machine does on its own.
///
/// With many pairs of windows it is asserted that windows without examinations do not differ by a twentieth, so that something
/// can be seen at all; that no stage raises the p99 by more than a twentieth, by the middle of all pairs; that the first two
/// stages take little of the server's core; and that own commands that take a millisecond are less than one of a thousand, and
/// those of no kind by their median. MONITOR's share of a server that is at its limit is printed and not asserted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_workload_goes_on_during_every_stage() -> anyhow::Result<()> {
    let server = Server::builder(Kind::Redis).start().await?;
    let keys = scale(20_000, "doctor live keys");
    fill(&server, keys).await?;
    let length = Duration::from_millis(scale(200, "doctor live millis"));
    let rounds = scale(1, "doctor live rounds");
    let pid = server.pid().unwrap_or(0).to_string();
    let is_pinned = run("taskset", &["-a", "-c", "-p", "0", &pid]);
    let mut dear = Vec::new();
    for pace in [Pace::Steady, Pace::Flood] {
        // A server without a pause would not be allowed to go first.
        let goes_first = prefer(&pid, pace == Pace::Steady) && pace == Pace::Steady;
        let workload = Workload::start(&server, pace).await?;
        // The first window is slower than the others.
        workload.window(&server, length).await?;
        let rounds = match pace {
            Pace::Steady => rounds,
            Pace::Flood => rounds.div_ceil(10),
        };
        for stage in ["none", "free", "sampled", "observed"] {
            let (pairs, spent) = pairs(&server, &workload, stage, length, rounds).await?;
            let ratio = |of: fn(&Window) -> Option<f64>| {
                let both = pairs
                    .iter()
                    .filter_map(move |(a, b)| Some((of(a)?, of(b)?)));
                (
                    Middle::of(both.clone().map(|(a, b)| a / b)),
                    Middle::of(both.clone().map(|(_, b)| b)).at,
                    Middle::of(both.map(|(a, b)| a - b)),
                )
            };
            let (p99, usual, _) = ratio(|window| Some(window.p99));
            let (each, time, _) = ratio(Window::each);
            let (_, _, core) = ratio(Window::busy);
            let rate = Middle::of(pairs.iter().map(|(_, b)| b.requests / b.took)).at;
            let what = match pace {
                Pace::Steady => format!(
                    "p99 of {CLIENTS} clients with {rate:.0} requests per second {p99} times that without, which is {usual:.0} us; {core} of the server's core more; "
                ),
                Pace::Flood => format!("{CLIENTS} clients that send {AT_ONCE} requests at once; "),
            };
            let seen: f64 = pairs.iter().map(|(a, _)| a.requests).sum();
            figure(format!(
                "stage {stage} over {keys} keys, {rounds} pairs of windows of {} ms{}{}: {what}the server's time per request {each} times that without, which is {time:.1} us; {} commands and {} lines of MONITOR for {seen:.0} requests",
                length.as_millis(),
                if is_pinned {
                    ", the server on a core of its own"
                } else {
                    ""
                },
                if goes_first {
                    ", it and its clients before all others"
                } else {
                    ""
                },
                spent.commands,
                spent.lines,
            ));
            if pace == Pace::Flood || rounds < ENOUGH {
                continue;
            }
            // A doctor that waits for a core would cost nothing.
            let is_there = match stage {
                "none" => true,
                "observed" => spent.lines as f64 > seen / 2.0,
                _ => spent.commands as f64 > 40.0 * rounds as f64 * length.as_secs_f64(),
            };
            if !is_there {
                let (commands, lines) = (spent.commands, spent.lines);
                dear.push(format!(
                    "the doctor was not there in stage {stage}: {commands} commands, {lines} lines"
                ));
            }
            if stage == "none" && (p99.low < 2.0 - P99 || p99.high > P99) {
                dear.push(format!("the machine differs from itself: {p99}"));
            }
            if p99.at > P99 {
                dear.push(format!("p99 in stage {stage}: {p99}"));
            }
            if stage != "observed" && core.low > CORE {
                dear.push(format!("core of the server in stage {stage}: {core}"));
            }
        }
    }
    prefer(&pid, true);
    let own = own_commands(&server, length * rounds.min(40) as u32).await?;
    prefer(&pid, false);
    let all: u64 = own.values().map(|times| times.len() as u64).sum();
    let long: u64 = own.values().flatten().filter(|took| **took > 1000).count() as u64;
    let mut kinds: Vec<(u64, u64, &String)> = own
        .iter()
        .map(|(name, times)| (times[times.len() - 1], times[times.len() / 2], name))
        .collect();
    kinds.sort_unstable();
    kinds.reverse();
    let longest: Vec<String> = kinds
        .iter()
        .take(5)
        .map(|(longest, median, name)| format!("{name} {longest} (median {median})"))
        .collect();
    figure(format!(
        "{all} own commands over {keys} keys, {long} of them longer than a millisecond; the longest of each kind in us: {}",
        longest.join(", ")
    ));
    assert!(all > 20, "{own:?}");
    if rounds >= ENOUGH {
        if long * 1000 > all {
            dear.push(format!("{long} of {all} own commands took a millisecond"));
        }
        let slow = kinds.iter().filter(|(_, median, _)| *median > 1000);
        dear.extend(slow.map(|(_, median, name)| format!("{name}: {median} us")));
    }
    assert!(dear.is_empty(), "the cost to a live workload: {dear:#?}");
    Ok(())
}
