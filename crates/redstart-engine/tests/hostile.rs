//! A thousand hostile connections of all kinds, and a well-behaved client that goes on being served.
//!
//! The attackers are another process with a low priority: what the client waits for is the server, not the CPU that the
//! attackers would take from the client.

#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redstart_engine::{Engine, server::ServerConfig};
use redstart_testkit::{Kind as ServerKind, block_until, figure, find, scale};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[path = "listener/running.rs"]
mod running;

use running::Running;

/// Not a test of its own: the process that is attacked, so that its memory can be seen and both ends of
/// all connections are not in one process.
#[test]
fn child_that_is_attacked() {
    if std::env::var_os("REDSTART_ATTACKED_CHILD").is_none() {
        return;
    }
    let engine = Engine::builder()
        // A script that loops is ended soon.
        .script_time(Duration::from_millis(10), Duration::from_millis(20))
        .build()
        .unwrap();
    let server = Running::start(engine, ServerConfig::new());
    println!("listening on {}", server.addr);
    // Until the parent closes the pipe, or is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

struct Attacked {
    process: Child,
    addr: SocketAddr,
}

/// This program again, for one of the tests that are not of their own.
fn child_process(
    mut command: Command,
    test: &str,
) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut process = command
        .args(["--exact", test, "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    (process, lines.map_while(Result::ok))
}

impl Attacked {
    /// An engine in a process of its own.
    fn engine() -> Attacked {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("REDSTART_ATTACKED_CHILD", "1");
        let (process, mut lines) = child_process(command, "child_that_is_attacked");
        let address = |line: String| {
            let (_, address) = line.split_once("listening on ")?;
            address.parse().ok()
        };
        let addr = lines.find_map(address);
        // Read on: a process that cannot say that it has run for long ends.
        std::thread::spawn(move || lines.for_each(drop));
        Attacked {
            process,
            addr: addr.expect("the child listens"),
        }
    }

    /// redis-server, for comparison.
    fn redis() -> Attacked {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let program = find::server(ServerKind::Redis).expect("a server, see `cargo xtask servers`");
        let process = Command::new(program)
            .args(["--port", &addr.port().to_string()])
            .args(["--save", "", "--appendonly", "no"])
            // It reserves what is announced; a machine may not have that for all of them.
            .args(["--proto-max-bulk-len", "1mb"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let attacked = Attacked { process, addr };
        let listens = || TcpStream::connect(addr).ok();
        block_until("redis-server to listen", Duration::from_secs(60), listens).unwrap();
        attacked
    }

    /// The resident memory in bytes.
    fn resident(&self) -> u64 {
        let file = format!("/proc/{}/statm", self.process.id());
        let text = std::fs::read_to_string(file).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A client that does what a client should, and notes how long its answers take.
struct WellBehaved {
    stream: TcpStream,
    number: u64,
    /// How often the answer was that a script is slow.
    busy: usize,
}

impl WellBehaved {
    fn connect(addr: SocketAddr) -> WellBehaved {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        WellBehaved {
            stream,
            number: 0,
            busy: 0,
        }
    }

    fn line(&mut self, request: &str) -> String {
        self.stream.write_all(request.as_bytes()).unwrap();
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Counts, and asserts that nobody else does.
    fn request(&mut self) -> Duration {
        let began = Instant::now();
        loop {
            let answer = self.line("INCR well-behaved\r\n");
            if answer.starts_with("-BUSY") {
                self.busy += 1;
                continue;
            }
            self.number += 1;
            assert_eq!(answer, format!(":{}\r\n", self.number));
            return began.elapsed();
        }
    }

    /// The times of this many requests, in order of their length.
    fn requests(&mut self, count: usize) -> Vec<Duration> {
        let mut times: Vec<Duration> = (0..count).map(|_| self.request()).collect();
        times.sort_unstable();
        times
    }
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// The ways to be a nuisance.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A byte at a time.
    Slow,
    /// A command that never ends.
    Half,
    /// Bytes without meaning, over and over.
    Garbage,
    /// Announces more than anybody has.
    Huge,
    /// Asks for much and reads nothing.
    Deaf,
    /// Listens and reads nothing.
    Subscriber,
    /// Comes and goes.
    Fickle,
    /// Runs scripts that never end by themselves.
    Looping,
}

/// A thousand connections.
const KINDS: [(Kind, usize); 7] = [
    (Kind::Slow, 200),
    (Kind::Half, 200),
    (Kind::Garbage, 200),
    (Kind::Huge, 200),
    (Kind::Deaf, 100),
    (Kind::Subscriber, 50),
    (Kind::Fickle, 50),
];
/// While a script loops everybody waits or is told so, on every server: these are measured apart.
const LOOPING: [(Kind, usize); 1] = [(Kind::Looping, 10)];

#[derive(Clone)]
struct Attack {
    addr: SocketAddr,
    over: Arc<AtomicBool>,
    /// How many connections are under way.
    connected: Arc<AtomicU64>,
    /// How many scripts were sent.
    scripts: Arc<AtomicU64>,
}

impl Attack {
    async fn wait(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    async fn run(self, kind: Kind, number: u64) {
        let mut first = true;
        while !self.over.load(Ordering::Relaxed) {
            let Ok(mut socket) = tokio::net::TcpStream::connect(self.addr).await else {
                self.wait(50).await;
                continue;
            };
            if std::mem::take(&mut first) {
                self.connected.fetch_add(1, Ordering::Relaxed);
            }
            // The other side may close the connection at any time.
            let _ = self.annoy(kind, number, &mut socket).await;
            self.wait(200 + number % 100).await;
        }
    }

    async fn annoy(
        &self,
        kind: Kind,
        number: u64,
        socket: &mut tokio::net::TcpStream,
    ) -> std::io::Result<()> {
        match kind {
            Kind::Slow => {
                let request = format!("*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$5\r\n{number:05}\r\n");
                for byte in request.bytes().cycle() {
                    if self.over.load(Ordering::Relaxed) {
                        break;
                    }
                    socket.write_all(&[byte]).await?;
                    self.wait(50 + number % 50).await;
                }
            }
            Kind::Half => {
                let half = b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$100000\r\nand then nothing";
                socket.write_all(half).await?;
                self.linger().await;
            }
            Kind::Garbage => {
                let mut seed = number | 1;
                let garbage: Vec<u8> = std::iter::repeat_with(|| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    match seed >> 60 {
                        0 => b'*',
                        1 => b'$',
                        2 => b'\r',
                        3 => b'\n',
                        _ => (seed >> 32) as u8,
                    }
                })
                .take(4096)
                .collect();
                socket.write_all(&garbage).await?;
                let _ = socket.read(&mut [0; 1024]).await;
            }
            Kind::Huge => {
                let announcement: &[u8] = match number % 4 {
                    0 => b"*1048576\r\n$500000000\r\n",
                    1 => b"*3\r\n$3\r\nSET\r\n$4\r\nhuge\r\n$536870912\r\nlittle",
                    2 => b"*2147483647\r\n$1\r\na\r\n",
                    _ => b"*2\r\n$4\r\nECHO\r\n$9223372036854775807\r\n",
                };
                socket.write_all(announcement).await?;
                self.linger().await;
            }
            Kind::Deaf => {
                socket.write_all(b"SET big ").await?;
                socket.write_all(&[b'x'; 20_000]).await?;
                socket.write_all(b"\r\n").await?;
                // No more is read from it once its replies pile up.
                let asked = async {
                    for _ in 0..500 {
                        socket.write_all(b"GET big\r\n").await?;
                    }
                    std::io::Result::Ok(())
                };
                let _ = tokio::time::timeout(Duration::from_secs(1), asked).await;
                self.linger().await;
            }
            Kind::Subscriber => {
                socket.write_all(b"SUBSCRIBE news\r\n").await?;
                self.linger().await;
            }
            Kind::Fickle => {
                socket.write_all(b"PING\r\n").await?;
                self.wait(20).await;
            }
            Kind::Looping => {
                // A few of them: while one runs, everybody waits or is told so, as with the servers.
                self.wait(number % 10 * 300).await;
                let script = "while true do end";
                let request = format!(
                    "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n",
                    script.len()
                );
                socket.write_all(request.as_bytes()).await?;
                self.scripts.fetch_add(1, Ordering::Relaxed);
                let _ = socket.read(&mut [0; 1024]).await;
                self.wait(3000).await;
            }
        }
        Ok(())
    }

    async fn linger(&self) {
        while !self.over.load(Ordering::Relaxed) {
            self.wait(100).await;
        }
    }
}

/// Not a test of its own: the process of the attackers.
#[test]
fn child_that_attacks() {
    let Ok(addr) = std::env::var("REDSTART_ATTACKED_ADDRESS") else {
        return;
    };
    let attack = Attack {
        addr: addr.parse().unwrap(),
        over: Arc::default(),
        connected: Arc::default(),
        scripts: Arc::default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let looping = std::env::var_os("REDSTART_ATTACK_BY_SCRIPTS").is_some();
    let kinds: &[(Kind, usize)] = if looping { &LOOPING } else { &KINDS };
    let mut number = 0;
    for &(kind, count) in kinds {
        for _ in 0..count {
            number += 1;
            runtime.spawn(attack.clone().run(kind, number));
        }
    }
    let least = if looping { 3 } else { 0 };
    let all_are_there = || {
        let connected = attack.connected.load(Ordering::Relaxed) == number;
        (connected && attack.scripts.load(Ordering::Relaxed) >= least).then_some(())
    };
    block_until("all attackers", PATIENCE, all_are_there).unwrap();
    println!("{number} are there");
    // Until the parent closes the pipe, or is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    attack.over.store(true, Ordering::Relaxed);
    runtime.shutdown_background();
}

const PATIENCE: Duration = Duration::from_secs(300);

/// The process of the attackers.
struct Attackers {
    process: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Attackers {
    /// Returns once all of them are connected; the client goes on meanwhile.
    fn start(attacked: &Attacked, client: &mut WellBehaved, by_scripts: bool) -> Attackers {
        let mut command = Command::new("nice");
        command
            .args(["-n", "19"])
            .arg(std::env::current_exe().unwrap())
            .env("REDSTART_ATTACKED_ADDRESS", attacked.addr.to_string());
        if by_scripts {
            command.env("REDSTART_ATTACK_BY_SCRIPTS", "1");
        }
        let (process, lines) = child_process(command, "child_that_attacks");
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.for_each(|line| drop(tell.send(line))));
        let attackers = Attackers {
            process,
            lines: told,
        };
        let deadline = Instant::now() + PATIENCE;
        while !attackers.says("are there") {
            assert!(Instant::now() < deadline, "they do not come");
            client.request();
        }
        attackers
    }

    fn says(&self, what: &str) -> bool {
        self.lines.try_iter().any(|line| line.contains(what))
    }

    /// Ends them.
    fn end(mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How many times as long the well-behaved client waits as when nobody attacks.
struct Ratios {
    middle: f64,
    p99: f64,
}

impl Ratios {
    fn of(attacked: &[Duration], quiet: &[Duration]) -> Ratios {
        let ratio = |percent| {
            let quiet = percentile(quiet, percent).as_secs_f64();
            percentile(attacked, percent).as_secs_f64() / quiet
        };
        Ratios {
            middle: ratio(50),
            p99: ratio(99),
        }
    }
}

/// Measures before, during and after an attack, and during one by scripts in addition; and how many bytes of memory the
/// server takes more meanwhile.
fn attack(
    attacked: &Attacked,
    client: &mut WellBehaved,
    by_scripts: bool,
) -> (Ratios, Option<Ratios>, u64) {
    let requests = scale(400, "hostile requests") as usize;
    client.requests(requests / 10);
    let mut quiet = client.requests(requests);
    let before = attacked.resident();
    let attackers = Attackers::start(attacked, client, false);
    let hostile = client.requests(requests);
    let looped = by_scripts.then(|| {
        let attackers = Attackers::start(attacked, client, true);
        let times = client.requests(requests);
        attackers.end();
        times
    });
    let grown = attacked.resident().saturating_sub(before);
    attackers.end();
    // Everybody is let in again afterwards.
    let lets_in = || {
        let mut late = WellBehaved::connect(attacked.addr);
        (late.line("PING\r\n") == "+PONG\r\n").then_some(())
    };
    block_until("the server to be free", PATIENCE, lets_in).unwrap();
    quiet.extend(client.requests(requests));
    quiet.sort_unstable();
    let looped = looped.map(|times| Ratios::of(&times, &quiet));
    (Ratios::of(&hostile, &quiet), looped, grown)
}

#[test]
fn a_thousand_hostile_connections_do_not_keep_a_client_from_being_served() {
    let redis = Attacked::redis();
    let mut client = WellBehaved::connect(redis.addr);
    let (peer, ..) = attack(&redis, &mut client, false);
    drop(redis);
    let engine = Attacked::engine();
    let mut client = WellBehaved::connect(engine.addr);
    let (hostile, looped, grown) = attack(&engine, &mut client, true);
    let looped = looped.expect("scripts loop");
    figure(format!(
        "1,000 hostile connections: a well-behaved client waits {:.1} times as long at p99 (goal: 3) and {:.1} times at the \
         median as without them, on redis-server {:.1} and {:.1} times; with scripts that loop for 20 ms each as well {:.1} \
         and {:.1} times, {} times BUSY; {} MB more memory",
        hostile.p99,
        hostile.middle,
        peer.p99,
        peer.middle,
        looped.p99,
        looped.middle,
        client.busy,
        grown >> 20,
    ));
    // The p99 of a busy machine says more about the machine: it is judged by a campaign on a quiet one.
    let most = scale(0, "hostile p99") as f64;
    if most > 0.0 && !cfg!(debug_assertions) {
        assert!(
            hostile.p99 <= most,
            "p99 is {} times the quiet one",
            hostile.p99
        );
    }
    for middle in [hostile.middle, looped.middle] {
        assert!(middle < 100.0, "the median is {middle} times the quiet one");
    }
    assert!(grown < 512 << 20, "{grown} bytes for hostile clients");
}
