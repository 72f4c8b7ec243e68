//! What statistics, the slow log and MONITOR cost while nobody looks: their own work beside whole commands,
//! both in one run. Only with `--release` are the figures those of a program. Valgrind counts instructions of the
//! same two functions: `valgrind --tool=callgrind <test program> stats::cost`.

use std::{
    hint::black_box,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart_testkit::{figure, scale};
use tokio::runtime::Runtime;

use crate::{
    Engine, Session, registry,
    server::{Server, ServerConfig},
    stats::Timer,
};

fn words(line: &str) -> Vec<Bytes> {
    let words = line.split(' ');
    words
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

/// The time of this many whole commands.
fn whole(session: &mut Session, args: &[Bytes], count: u64) -> Duration {
    let began = Instant::now();
    for _ in 0..count {
        black_box(session.execute(black_box(args)));
    }
    began.elapsed()
}

/// The time of what [`crate::context::Ctx::call`] does for them beside the command itself.
fn alone(engine: &Engine, args: &[Bytes], networked: bool, count: u64) -> Duration {
    let spec = registry::lookup(args).expect("a command");
    let mut state = engine.inner.state.lock();
    let began = Instant::now();
    for _ in 0..count {
        state.stats.commands += 1;
        let timer = state.stats.timer(black_box(spec), networked, true);
        black_box(state.monitors.is_empty());
        let took = timer.map(Timer::stop);
        let tracked = state.config.latency_tracking;
        state
            .stats
            .ran(spec, black_box(false), took.as_ref(), tracked);
        if let Some(took) = took {
            black_box(state.config.is_long(took.nanos));
        }
        black_box(state.monitors.is_empty());
    }
    began.elapsed()
}

/// An engine with something to read.
fn filled() -> Engine {
    let engine = Engine::new();
    let mut session = engine.session();
    for line in [
        "SET key value",
        "HSET hash a 1 b 2 c 3",
        "RPUSH list a b c d e f g h",
    ] {
        session.execute(&words(line));
    }
    engine
}

/// Nanoseconds of one of something, and of one of something else, by the medians of alternating rounds.
fn beside(mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (f64, f64) {
    const ROUNDS: usize = 11;
    let (mut ones, mut others): (Vec<f64>, Vec<f64>) =
        (0..ROUNDS).map(|_| (one(), other())).unzip();
    let median = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    };
    (median(&mut ones), median(&mut others))
}

fn per_one(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count as f64
}

/// The share of a command's time, and the time of one.
fn share(line: &str, networked: bool) -> (f64, f64) {
    let count = scale(20_000, "watched commands");
    let engine = filled();
    let mut session = engine.session();
    session.count_as_networked(networked);
    let args = words(line);
    let (all, alone) = beside(
        || per_one(whole(&mut session, &args, count), count),
        || per_one(alone(&engine, &args, networked, count), count),
    );
    (alone / all, all)
}

/// A listener with threads of its own, whose time on the processor is known.
struct Listening {
    addr: SocketAddr,
    schedstats: Arc<Mutex<Vec<PathBuf>>>,
    /// Dropped to end it.
    _runtime: Runtime,
}

impl Listening {
    fn start(engine: Engine) -> Listening {
        let schedstats = Arc::<Mutex<Vec<PathBuf>>>::default();
        let told = schedstats.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(move || {
                let thread = std::fs::read_link("/proc/thread-self").expect("a thread is shown");
                told.lock()
                    .push(PathBuf::from("/proc").join(thread).join("schedstat"));
            })
            .enable_all()
            .build()
            .expect("a runtime");
        let config = ServerConfig::new().listen("127.0.0.1:0".parse().expect("an address"));
        let server = runtime.block_on(Server::bind(engine, config));
        let server = server.expect("a free port");
        let addr = server.local_addr().expect("it listens");
        runtime.spawn(server.run(std::future::pending()));
        Listening {
            addr,
            schedstats,
            _runtime: runtime,
        }
    }

    /// The time of its threads on the processor.
    fn spent(&self) -> Duration {
        let nanos = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).expect("its threads run");
            let nanos = text.split(' ').next().and_then(|word| word.parse().ok());
            nanos.unwrap_or(0u64)
        };
        Duration::from_nanos(self.schedstats.lock().iter().map(nanos).sum())
    }
}

/// The share of what a listener's threads spend on a command, which comes with so many others, and all of that.
fn share_of_a_listener(line: &str, together: u64) -> (f64, f64) {
    // A command over a socket takes tens of times as long.
    let rounds = (scale(20_000, "watched commands") / 20).div_ceil(together);
    let count = rounds * together;
    let engine = filled();
    let args = words(line);
    let listening = Listening::start(engine.clone());
    let mut socket = TcpStream::connect(listening.addr).expect("it listens");
    socket.set_nodelay(true).expect("a socket");
    let request = format!("{line}\r\n");
    socket.write_all(request.as_bytes()).expect("it reads");
    let mut reply = [0; 1024];
    let length = socket.read(&mut reply).expect("it answers") as u64;
    let batch = request.repeat(together as usize);
    let mut replies = vec![0; (length * together) as usize];
    let (all, alone) = beside(
        || {
            let before = listening.spent();
            for _ in 0..rounds {
                socket.write_all(batch.as_bytes()).expect("it reads");
                socket.read_exact(&mut replies).expect("it answers");
            }
            per_one(listening.spent() - before, count)
        },
        || per_one(alone(&engine, &args, true, 20 * count), 20 * count),
    );
    (alone / all, all)
}

#[test]
fn watching_costs_a_listener_two_percent_at_most() {
    // Their replies are of one length.
    for line in [
        "GET key",
        "SET key value",
        "HGETALL hash",
        "LRANGE list 0 -1",
    ] {
        for together in [1, 16] {
            let (share, nanos) = share_of_a_listener(line, together);
            figure(format!(
                "{line} over a socket, {together} at once: {nanos:.0} ns of the listener's threads, of which {:.2} % count and \
                 time it",
                share * 100.0
            ));
            assert!(nanos > 0.0, "the listener's threads did nothing");
            // Requests that come together share what the system takes for a packet.
            let most = if together == 1 { 0.02 } else { 0.2 };
            assert!(
                cfg!(debug_assertions) || share < most,
                "{line}, {together} at once: {share}"
            );
        }
    }
}

#[test]
fn watching_costs_little_while_nobody_looks() {
    for (networked, place) in [
        (false, "in the process"),
        (true, "behind a listener, without its socket"),
    ] {
        let shares = [
            "GET key",
            "SET key value",
            "HGETALL hash",
            "LRANGE list 0 -1",
            "INCRBY number 7",
        ];
        for line in shares {
            let (share, nanos) = share(line, networked);
            figure(format!(
                "{line} {place}: {nanos:.0} ns, of which {:.1} % count and time it",
                share * 100.0
            ));
            // A listener's command takes microseconds with its socket.
            let most = if networked { 0.5 } else { 0.2 };
            assert!(
                cfg!(debug_assertions) || share < most,
                "{line} {place}: {share}"
            );
        }
    }
}
