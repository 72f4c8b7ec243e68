//! A server: an engine behind simulated sockets, and what stands in front of it.

mod command;
mod talk;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart::sim::Process;
use redstart_engine::{Clock, Compat, Engine, Outcome, Reply, sim};

use crate::{
    dice::Dice,
    network::{Net, Peer, Reach},
    plan::Plan,
    resp::Parser,
    seen::Seen,
    slots::{Map, Verdict},
    trace::Trace,
    trouble::{Troubles, What},
};
use command::{is_control, is_read, sorts_by_keys};
use talk::{Door, Talk};

/// Unix time in microseconds when every world begins: 2026-01-01.
pub const EPOCH: i64 = 1_767_225_600_000_000;
/// Process numbers of servers start here.
const PROCESS: usize = 1000;

/// A server, with one engine at a time.
pub struct Server {
    /// Its number.
    pub index: usize,
    /// Its name in the network.
    pub host: String,
    /// Its port.
    pub port: u16,
    seed: u64,
    /// What holds from start to start: its clock is set again, and it may be of another version.
    plan: Plan,
    trace: Arc<Trace>,
    troubles: Arc<Troubles>,
    net: Arc<Net>,
    seen: Arc<Seen>,
    inner: Mutex<Inner>,
}

struct Inner {
    engine: Engine,
    /// By how many microseconds its clock is ahead of the world's.
    ahead: i64,
    /// When it was started.
    since: Duration,
    process: Arc<Process>,
    starts: u64,
    crashes: u64,
    reach: Reach,
    refuses: bool,
    injection: Option<Injection>,
    dice: Dice,
    role: Role,
    /// Part of a cluster.
    map: Option<Arc<Map>>,
    /// Where it has its log, if it keeps one.
    disk: Option<sim::Disk>,
    /// It has no memory left for more data.
    starves: bool,
    /// It forgot its scripts, and nobody has noticed yet.
    forgot: bool,
}

/// What a server finds when it starts.
#[derive(Clone, Debug)]
pub enum Found {
    /// This data, as commands.
    Data(Vec<u8>),
    /// What is on its disk.
    Disk,
    /// Nothing.
    Nothing,
}

/// What a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Master,
    /// It refuses writes.
    Replica,
    /// It names the master.
    Sentinel {
        /// The host and port that it names.
        names: (String, u16),
    },
}

/// Errors that a server answers instead of working.
#[derive(Clone, Debug)]
pub struct Injection {
    /// The error, with its code.
    pub error: &'static str,
    /// How many of a thousand commands get it.
    pub share: u64,
    /// Only those that write.
    pub writes: bool,
}

impl Server {
    /// A new, empty server.
    #[allow(clippy::too_many_arguments)] // What each server of a world has, once.
    pub fn new(
        index: usize,
        host: &str,
        port: u16,
        plan: &Plan,
        trace: &Arc<Trace>,
        troubles: &Arc<Troubles>,
        net: &Arc<Net>,
        seen: &Arc<Seen>,
    ) -> Arc<Self> {
        let seed = plan.seed;
        let ahead = ahead(plan, index, 0);
        let disk = (plan.keeps_log && index < plan.servers()).then(sim::Disk::default);
        let server = Arc::new(Self {
            index,
            host: host.to_owned(),
            port,
            seed,
            plan: plan.clone(),
            trace: trace.clone(),
            troubles: troubles.clone(),
            net: net.clone(),
            seen: seen.clone(),
            inner: Mutex::new(Inner {
                engine: engine(trace, ahead, plan.compat(index, 0), disk.as_ref()),
                ahead,
                since: Duration::ZERO,
                process: Process::new(PROCESS + index, seed),
                starts: 0,
                crashes: 0,
                reach: Reach::Listening,
                refuses: false,
                injection: None,
                dice: Dice::of(seed, &[3, index as u64]),
                role: Role::Master,
                map: None,
                disk,
                starves: false,
                forgot: false,
            }),
        });
        net.add(host, port, Arc::new(Door(server.clone())));
        server
    }

    /// Its number in the network.
    pub fn peer(&self) -> Peer {
        Peer::Server(self.index)
    }

    /// The engine that serves now.
    pub fn engine(&self) -> Engine {
        self.inner.lock().engine.clone()
    }

    /// Makes it a sentinel, a replica or a master.
    pub fn set_role(&self, role: Role) {
        self.inner.lock().role = role;
    }

    /// What it is.
    pub fn role(&self) -> Role {
        self.inner.lock().role.clone()
    }

    /// Makes it a node of a cluster.
    pub fn join(&self, map: &Arc<Map>) {
        self.inner.lock().map = Some(map.clone());
    }

    /// Answers this many commands with an error, or none.
    pub fn inject(&self, injection: Option<Injection>) {
        self.inner.lock().injection = injection;
    }

    /// Refuses new connections, or accepts them.
    pub fn refuse(&self, refuses: bool) {
        self.inner.lock().refuses = refuses;
    }

    /// By how many microseconds its clock is ahead of the world's.
    pub fn ahead(&self) -> i64 {
        self.inner.lock().ahead
    }

    /// When it was started last.
    pub fn since(&self) -> Duration {
        self.inner.lock().since
    }

    /// Forgets its scripts.
    pub fn forget(&self) {
        let flush = [Bytes::from_static(b"SCRIPT"), Bytes::from_static(b"FLUSH")];
        let mut inner = self.inner.lock();
        inner.forgot = true;
        drop(inner.engine.session().execute(&flush));
    }

    /// What an error of the engine says about the server.
    fn note_error(&self, error: &str) {
        if error.starts_with("OOM") {
            self.troubles.happened("no memory");
        }
        if error.starts_with("NOSCRIPT") && std::mem::take(&mut self.inner.lock().forgot) {
            self.troubles.happened("forget");
        }
    }

    /// All data, as commands.
    pub fn snapshot(&self) -> Vec<u8> {
        sim::snapshot(&self.engine())
    }

    /// Stands still: accepts connections and answers nothing.
    pub fn hang(&self) {
        self.trace.note(self.peer(), format_args!("hangs"));
        self.inner.lock().process.stop();
    }

    /// Runs on.
    pub fn wake(&self) {
        let process = self.inner.lock().process.clone();
        if !process.is_running() && !process.is_gone() {
            self.trace.note(self.peer(), format_args!("runs on"));
        }
        process.go_on();
    }

    /// How often it has crashed.
    pub fn crashes(&self) -> u64 {
        self.inner.lock().crashes
    }

    /// Dies. Its system tells the clients, unless the whole machine is gone. How often it has crashed now.
    pub fn crash(&self, silently: bool) -> u64 {
        self.trace.note(self.peer(), format_args!("crashes"));
        let mut inner = self.inner.lock();
        inner.crashes += 1;
        let crashes = inner.crashes;
        inner.process.kill();
        if let Some(disk) = &inner.disk {
            disk.process_dies();
        }
        inner.reach = match silently {
            true => Reach::Gone,
            false => Reach::Refused,
        };
        drop(inner);
        self.net.leave(self.peer(), silently);
        crashes
    }

    /// Starts again with what it finds.
    pub fn start(&self, found: &Found) {
        let mut inner = self.inner.lock();
        let found = match (found, &inner.disk) {
            (Found::Disk, None) => &Found::Nothing,
            (found, _) => found,
        };
        let text = match found {
            Found::Data(data) => format!("{} bytes of data", data.len()),
            Found::Disk => "what is on its disk".to_owned(),
            Found::Nothing => "nothing".to_owned(),
        };
        self.trace
            .note(self.peer(), format_args!("starts with {text}"));
        inner.starts += 1;
        inner.starves = false;
        inner.ahead = ahead(&self.plan, self.index, inner.starts);
        inner.since = self.trace.now();
        match (&mut inner.disk, found) {
            // A log that cannot be synced is not opened.
            (Some(disk), Found::Disk) => disk.syncs_again(),
            // Another disk.
            (Some(disk), _) => *disk = sim::Disk::default(),
            (None, _) => {}
        }
        let compat = self.plan.compat(self.index, inner.starts);
        inner.engine = engine(&self.trace, inner.ahead, compat, inner.disk.as_ref());
        if let Found::Data(data) = found {
            load(&inner.engine, data);
        }
        if inner.process.is_gone() {
            inner.process = Process::new(PROCESS + self.index, self.seed ^ inner.starts);
        }
        inner.reach = Reach::Listening;
    }

    /// Whether it keeps a log on a disk.
    pub fn keeps_log(&self) -> bool {
        self.inner.lock().disk.is_some()
    }

    /// Its disk takes only this many bytes more, and its syncs fail or not; false if it has none.
    pub fn disk_fails(&self, room: usize, syncs_fail: bool) -> bool {
        let inner = self.inner.lock();
        let Some(disk) = &inner.disk else {
            return false;
        };
        disk.fail(room, syncs_fail);
        true
    }

    /// Its disk works again.
    pub fn disk_works(&self) {
        if let Some(disk) = &self.inner.lock().disk {
            disk.mend();
        }
    }

    /// What the thread of its log does now and then, unless it stands still. Whether the log takes writes after that.
    pub fn log_round(&self) -> bool {
        let inner = self.inner.lock();
        // The next process begins with a log that is fine.
        inner.process.is_gone() || (inner.process.is_running() && sim::log_round(&inner.engine))
    }

    /// Has no memory left for more data, or has.
    pub fn starve(&self, starves: bool) {
        let mut inner = self.inner.lock();
        inner.starves = starves;
        let most = if starves { "1" } else { "0" };
        let words = ["CONFIG", "SET", "maxmemory", most];
        let words = words.map(|word| Bytes::copy_from_slice(word.as_bytes()));
        drop(inner.engine.session().execute(&words));
    }

    /// Whether it serves, and can take all the data of another one.
    pub fn takes_data(&self) -> bool {
        let up = self.is_up();
        let inner = self.inner.lock();
        let fails = inner.disk.as_ref().is_some_and(sim::Disk::is_failing);
        // After a failure, the thread of the log has to write first.
        up && !fails && !inner.starves && sim::log_round(&inner.engine)
    }

    /// Takes over the data of another one.
    pub fn sync(&self, data: Option<&[u8]>) {
        let engine = self.engine();
        drop(engine.session().execute(&[Bytes::from_static(b"FLUSHALL")]));
        load(&engine, data.unwrap_or_default());
    }

    /// Whether it serves.
    pub fn is_up(&self) -> bool {
        let inner = self.inner.lock();
        inner.process.is_running() && inner.reach == Reach::Listening
    }

    /// Drops keys, as a server does that is short of memory; which ones.
    pub fn evict(&self, volatile: bool, share: u64) -> Vec<String> {
        let words = |words: &[&[u8]]| -> Vec<Bytes> {
            let words = words.iter();
            words.map(|word| Bytes::copy_from_slice(word)).collect()
        };
        let mut inner = self.inner.lock();
        let mut session = inner.engine.session();
        let mut keys = match session.execute(&words(&[b"KEYS", b"*"])) {
            Outcome::Reply(Reply::Array(keys)) => keys,
            _ => Vec::new(),
        };
        keys.sort_by_key(|key| format!("{key:?}"));
        let mut gone = Vec::new();
        for key in keys {
            let Reply::Bulk(key) = key else { continue };
            let ttl = session.execute(&words(&[b"PTTL", &key]));
            let stays = volatile && matches!(ttl, Outcome::Reply(Reply::Int(-1)));
            if stays || !inner.dice.per_mille(share) {
                continue;
            }
            drop(session.execute(&words(&[b"DEL", &key])));
            gone.push(String::from_utf8_lossy(&key).into_owned());
        }
        gone
    }

    /// Closes the connections of clients.
    pub fn disconnect(&self) {
        self.net.cut(self.peer());
    }

    /// Tells subscribers of a channel.
    pub fn publish(&self, channel: &str, message: &str) {
        let words =
            ["PUBLISH", channel, message].map(|word| Bytes::copy_from_slice(word.as_bytes()));
        drop(self.engine().session().execute(&words));
    }

    /// The reply of whatever stands in front of the engine; `None` if the engine is to answer.
    fn front(&self, args: &[Bytes], talk: &mut Talk) -> Option<Reply> {
        let name = args.first()?.to_ascii_uppercase();
        let mut inner = self.inner.lock();
        let asked = std::mem::take(&mut talk.asking);
        match (&*name, &inner.role) {
            (b"SENTINEL", Role::Sentinel { names }) => {
                let (host, port) = names;
                return Some(Reply::Array(vec![
                    Reply::bulk(host),
                    Reply::bulk(port.to_string()),
                ]));
            }
            (b"ROLE", Role::Replica) => {
                let words = ["slave", "127.0.0.1", "6379", "connected"];
                return Some(Reply::Array(words.iter().map(Reply::bulk).collect()));
            }
            _ => {}
        }
        let control = is_control(&name);
        let writes = !control && !is_read(&name);
        if writes && inner.role == Role::Replica {
            talk.refused();
            let text = "READONLY You can't write against a read only replica.";
            return Some(Reply::Error(text.into()));
        }
        if let Some(map) = inner.map.clone() {
            let engine = &inner.engine;
            match map.judge(self.index, &name, args, asked, engine) {
                Verdict::Serve => {}
                Verdict::Asking => {
                    talk.asking = true;
                    return Some(Reply::OK);
                }
                Verdict::Reply(reply) => {
                    if matches!(reply, Reply::Error(_)) {
                        talk.refused();
                    }
                    return Some(reply);
                }
            }
            let compat = self.plan.compat(self.index, inner.starts);
            if matches!(compat, Compat::Redis70 | Compat::Redis74) && sorts_by_keys(&name, args) {
                let text = "ERR BY option of SORT denied in cluster mode.";
                return Some(Reply::Error(text.into()));
            }
        }
        if let Some(injection) = inner.injection.clone()
            && !control
            && (writes || !injection.writes)
            && inner.dice.per_mille(injection.share)
        {
            self.trace
                .note(self.peer(), format_args!("answers {}", injection.error));
            talk.refused();
            self.troubles.happened("answer");
            let what = What::Answer(injection.error);
            self.troubles
                .between(what, talk.end.client(), self.peer(), Duration::ZERO);
            return Some(Reply::Error(injection.error.into()));
        }
        None
    }

    fn is_cluster(&self) -> bool {
        self.inner.lock().map.is_some()
    }
}

/// How far a server's clock is ahead after a start: well kept, a little wrong, or set by hand.
fn ahead(plan: &Plan, index: usize, start: u64) -> i64 {
    let mut dice = Dice::of(plan.seed, &[6, index as u64, start]);
    match plan.clocks_differ {
        true => *dice.pick(&[0, 50_000, -50_000, 2_000_000, -2_000_000]),
        false => 0,
    }
}

fn engine(trace: &Trace, ahead: i64, compat: Compat, disk: Option<&sim::Disk>) -> Engine {
    let now = EPOCH + trace.now().as_micros() as i64 + ahead;
    let builder = Engine::builder()
        .databases(1)
        .compat(compat)
        .clock(Clock::live_at(now));
    let engine = match builder.build() {
        Ok(engine) => engine,
        Err(error) => panic!("no engine: {error}"),
    };
    if let Some(Err(error)) = disk.map(|disk| sim::keep_log(&engine, disk)) {
        panic!("a server does not start with its log: {error}");
    }
    engine
}

/// Carries out commands.
pub fn load(engine: &Engine, data: &[u8]) {
    let mut parser = Parser::default();
    parser.feed(data);
    let mut session = engine.session();
    while let Ok(Some(command)) = parser.next() {
        if let Outcome::Reply(Reply::Error(error)) = session.execute(&command) {
            panic!("a snapshot cannot be loaded: {error}");
        }
    }
}
