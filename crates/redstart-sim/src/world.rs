//! A running world: servers, clients, what goes wrong, and what was found to be broken.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use redstart::{
    Store,
    sim::{self, Process},
};
use redstart_engine::{Outcome as Executed, Reply};
use tokio::{sync::Notify, time::Instant};

use crate::{
    agenda::Agenda,
    client::Client,
    dice::Dice,
    history::{self, Event, Explained, Model},
    mutation::Mutation,
    network::{Dialler, Net, Peer},
    plan::{Fault, FaultKind, PARTS, Plan, Shape},
    reason,
    seen::Seen,
    server::{EPOCH, Role, Server},
    slots::Map,
    trace::{Line, Trace},
    trouble::{Troubles, What},
    workload::Workload,
};

/// No machine is suspended for longer.
pub const SUSPENDED: Duration = Duration::from_secs(10);
/// No master that was replaced is believed for longer.
pub const OLD_MASTER: Duration = Duration::from_secs(10);
/// How long the clients may need after the last fault has ended.
const FINISH_WITHIN: Duration = Duration::from_secs(180);
/// How long after the faults a process that lived through them may need until its calls succeed again: a request that was
/// under way runs into its deadline, then a new connection is made, with pauses of up to 400 ms between attempts.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);
/// How long after a process has dropped its stores its last task may end: what tries again in the background does so for a while.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// How long it takes to make a connection again, beside the deadline of the call that failed: pauses of up to 400 ms.
const AGAIN: Duration = Duration::from_millis(500);
/// How long the last checks may take.
const SETTLE_WITHIN: Duration = Duration::from_secs(180);

/// Everything in one world.
pub struct World {
    /// What was planned.
    pub plan: Plan,
    /// What happened.
    pub trace: Arc<Trace>,
    /// What really went wrong.
    pub troubles: Arc<Troubles>,
    /// What is going to happen.
    pub agenda: Arc<Agenda>,
    /// The network.
    pub net: Arc<Net>,
    /// What the servers did.
    pub seen: Arc<Seen>,
    /// The servers that hold data, then the sentinels.
    pub servers: Vec<Arc<Server>>,
    /// The slots of a cluster.
    pub map: Option<Arc<Map>>,
    /// The client processes, by number.
    pub(crate) lives: Vec<Life>,
    inner: Mutex<Inner>,
    finished: Notify,
}

#[derive(Default)]
struct Inner {
    breaches: Vec<String>,
    losses: Vec<(Duration, Duration)>,
    /// When data came under another server's clock.
    jumps: Vec<Duration>,
    /// When a server dropped keys.
    evictions: Vec<Duration>,
    /// Which client's machine was suspended, from when to when.
    suspensions: Vec<(usize, Duration, Duration)>,
    /// The master behind the sentinels.
    master: usize,
    /// When the last fault that has begun will have ended.
    busy_until: Duration,
    /// No fault begins any more.
    over: bool,
    tally: Tally,
}

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

/// A client over all its incarnations.
pub(crate) struct Life {
    pub(crate) left: AtomicUsize,
    pub(crate) done: AtomicUsize,
    pub(crate) process: Mutex<Arc<Process>>,
    pub(crate) incarnation: AtomicUsize,
    pub(crate) stopped: Mutex<(Option<Instant>, Duration)>,
    /// When it ran on after it had stood still, and how long it had.
    pub(crate) woke: Mutex<Option<(Duration, Duration)>>,
    /// The stores of all incarnations. A process that was killed drops nothing.
    pub(crate) stores: Mutex<Vec<(Arc<Process>, Store)>>,
}

/// What a run of a world showed.
#[derive(Debug)]
pub struct Outcome {
    /// The same for every run of the same plan.
    pub hash: u64,
    /// How many events the hash is made of.
    pub events: u64,
    /// How much time passed in the world.
    pub simulated: Duration,
    /// Promises that were broken.
    pub breaches: Vec<String>,
    /// The faults that really happened, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What the clients met.
    pub tally: Tally,
    /// What happened, if it was recorded.
    pub lines: Vec<Line>,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic in a background task is a breach, not a line on the screen.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if sim::current().is_some() {
                PANIC.set(Some(info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
}

/// Runs a world to its end.
///
/// # Panics
///
/// If no runtime can be made.
pub fn run(plan: &Plan, with_lines: bool, mutation: Option<&Mutation>) -> Outcome {
    catch_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    redstart_engine::sim::seed(Some(plan.seed));
    let entered = runtime.enter();
    let world = World::new(plan.clone(), with_lines);
    drop(entered);
    let installed = sim::install(sim::Setup {
        network: Arc::new(Dialler(world.net.clone())),
        seed: plan.seed,
        unix_millis: {
            let trace = world.trace.clone();
            Box::new(move || (EPOCH / 1000) as u64 + trace.now().as_millis() as u64)
        },
        scripts: mutation.and_then(Mutation::script).into_iter().collect(),
        broken: mutation.and_then(Mutation::switch).into_iter().collect(),
    });
    PANIC.set(None);
    let workload = plan.pattern.workload(&world);
    let simulated = runtime.block_on(world.clone().live(workload));
    if let Some(panic) = PANIC.take() {
        world.breach(format!("a task panicked: {panic}"));
    }
    let (hash, events, lines) = world.trace.end();
    let (breaches, faults, tally) = {
        let mut inner = world.inner.lock();
        inner.tally.lossy = u64::from(!inner.losses.is_empty());
        (
            std::mem::take(&mut inner.breaches),
            world.troubles.take_happened(),
            inner.tally,
        )
    };
    // What is left must not hold the world in circles.
    drop(runtime);
    world.agenda.clear();
    world.net.clear();
    drop(installed);
    redstart_engine::sim::seed(None);
    Outcome {
        hash,
        events,
        simulated,
        breaches,
        faults,
        tally,
        lines,
    }
}

impl World {
    fn new(plan: Plan, with_lines: bool) -> Arc<Self> {
        let trace = Arc::new(Trace::new(with_lines));
        let agenda = Arc::<Agenda>::default();
        let troubles = Troubles::new(trace.clone());
        let net = Net::new(
            trace.clone(),
            troubles.clone(),
            agenda.clone(),
            plan.seed,
            plan.weather.clone(),
        );
        let seen = Arc::<Seen>::default();
        let server = |index: usize, host: &str| {
            Server::new(index, host, 6379, &plan, &trace, &troubles, &net, &seen)
        };
        let mut servers: Vec<_> = (0..plan.servers())
            .map(|index| server(index, &format!("db{index}")))
            .collect();
        let mut map = None;
        match plan.shape {
            Shape::Single | Shape::Separate => {}
            Shape::Sentinel => {
                servers[1].set_role(Role::Replica);
                for index in 2..5 {
                    let sentinel = server(index, &format!("sentinel{index}"));
                    sentinel.set_role(Role::Sentinel {
                        names: ("db0".into(), 6379),
                    });
                    servers.push(sentinel);
                }
            }
            Shape::Cluster => {
                let nodes = servers.iter().map(|node| (node.host.clone(), node.port));
                let owners = (0..PARTS).map(|part| part % servers.len()).collect();
                let made = Arc::new(Map::new(nodes.collect(), owners));
                for node in &servers {
                    node.join(&made);
                }
                map = Some(made);
            }
        }
        let lives = (0..plan.clients)
            .map(|index| Life {
                left: AtomicUsize::new(plan.operations),
                done: AtomicUsize::new(0),
                process: Mutex::new(Process::new(index, plan.seed)),
                incarnation: AtomicUsize::new(0),
                stopped: Mutex::default(),
                woke: Mutex::default(),
                stores: Mutex::default(),
            })
            .collect();
        Arc::new(Self {
            plan,
            trace,
            troubles,
            agenda,
            net,
            seen,
            servers,
            map,
            lives,
            inner: Mutex::default(),
            finished: Notify::new(),
        })
    }

    async fn live(self: Arc<Self>, workload: Arc<dyn Workload>) -> Duration {
        tokio::spawn(self.agenda.clone().run());
        self.plan_faults(&workload);
        for index in 0..self.plan.clients {
            self.spawn_client(index, &workload);
        }
        let end = self.plan.faults.last().map_or(Duration::ZERO, |f| f.at) + FINISH_WITHIN;
        let late = tokio::time::timeout(end, self.all_finished())
            .await
            .is_err();
        if late {
            for (index, life) in self.lives.iter().enumerate() {
                if life.done.load(Ordering::Relaxed) == 0 {
                    let left = life.left.load(Ordering::Relaxed);
                    self.breach(format!(
                        "client {index} does not come to its end: {left} operations left"
                    ));
                }
            }
        }
        self.calm(&workload).await;
        for life in &self.lives {
            drop(std::mem::take(&mut *life.stores.lock()));
        }
        let took = self.trace.now();
        self.everything_ends(&workload).await;
        took
    }

    /// Without its stores, a process that lived through the faults has neither tasks nor connections any more.
    async fn everything_ends(&self, workload: &Arc<dyn Workload>) {
        workload.let_go();
        tokio::time::sleep(ENDS_WITHIN).await;
        for (index, life) in self.lives.iter().enumerate() {
            let process = life.process.lock().clone();
            // One that was killed before dropped nothing, and its connections are gone.
            if process.is_gone() || life.incarnation.load(Ordering::Relaxed) != 1 {
                continue;
            }
            for (name, count) in process.tasks() {
                self.breach(format!(
                    "client {index} has dropped everything and still runs {count} of {name}"
                ));
            }
            let open = self.net.count(Peer::Client(index));
            if open > 0 {
                self.breach(format!(
                    "client {index} has dropped everything and has {open} connections"
                ));
            }
        }
    }

    /// All faults end, and the workload looks whether everything is well.
    async fn calm(self: &Arc<Self>, workload: &Arc<dyn Workload>) {
        let busy = {
            let mut inner = self.inner.lock();
            inner.over = true;
            inner.busy_until
        };
        tokio::time::sleep(busy.saturating_sub(self.trace.now())).await;
        // Slots whose move waited for a node that was down: their connections are closed once more when it ends.
        for _ in 0..500 {
            if !self.map.as_ref().is_some_and(|map| map.is_moving()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.trace
            .note("world", format_args!("all faults have ended"));
        self.net.heal();
        self.net.calm();
        for server in &self.servers {
            server.wake();
            server.inject(None);
            server.refuse(false);
            // The thread of a log that had no room has written it.
            server.log_round();
        }
        for life in &self.lives {
            life.process.lock().go_on();
        }
        self.survivors_work_again(workload).await;
        let index = self.plan.clients;
        let process = Process::new(index, self.plan.seed ^ 0xCA1A);
        let client = Client::new(self.clone(), index, process.clone(), self.plan.seed);
        let work = process.own(workload.clone().settle(client));
        if tokio::time::timeout(SETTLE_WITHIN, work).await.is_err() {
            self.breach("after all faults had ended, the last checks hung".to_owned());
        }
        for refusal in self.seen.refusals() {
            self.breach(refusal);
        }
    }

    /// Every process that lives must be able to work with the store that it has, not only a fresh one.
    async fn survivors_work_again(self: &Arc<Self>, workload: &Arc<dyn Workload>) {
        let by = self.now() + self.plan.deadline + ALIVE_WITHIN;
        let mut checks = Vec::new();
        for (index, life) in self.lives.iter().enumerate() {
            let last = life.stores.lock().last().cloned();
            let Some((process, store)) = last else {
                continue;
            };
            if process.is_gone() {
                continue;
            }
            let mut seeds = Dice::of(self.plan.seed, &[5, index as u64]);
            let client = Client::new(self.clone(), index, process.clone(), seeds.next());
            let (world, workload) = (self.clone(), workload.clone());
            let check = async move {
                loop {
                    let worked = match store.query::<String>(&redis::cmd("PING")).await {
                        Ok(_) => workload.clone().works(&client, &store).await,
                        Err(error) => Err(error.to_string()),
                    };
                    if let Err(error) = &worked {
                        world.hear_error(error, index, world.now());
                    }
                    match worked {
                        Ok(()) => return,
                        Err(error) if world.now() >= by => {
                            return world.breach(format!(
                                "client {index} still cannot work after all faults have ended: {error}"
                            ));
                        }
                        Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            };
            checks.push(process.own(check));
        }
        if tokio::time::timeout(SETTLE_WITHIN, futures_util::future::join_all(checks))
            .await
            .is_err()
        {
            self.breach("after all faults had ended, a call of a survivor hung".to_owned());
        }
        for index in 0..self.plan.clients {
            let most = self.most_connections() + workload.own_connections();
            let open = self.net.count(Peer::Client(index));
            if open > most {
                self.breach(format!(
                    "client {index} has {open} connections, and needs at most {most}"
                ));
            }
        }
    }

    /// How many connections one process may have: to each server that holds data one for requests and one for
    /// subscriptions, to each sentinel one, and for each of them one more that has been left because a reply is late, and
    /// stays until that has come.
    fn most_connections(&self) -> usize {
        2 * (2 * self.plan.servers() + (self.servers.len() - self.plan.servers()))
    }

    async fn all_finished(&self) {
        loop {
            let finished = self.finished.notified();
            let done = |life: &Life| life.done.load(Ordering::Relaxed) > 0;
            if self.lives.iter().all(done) {
                return;
            }
            finished.await;
        }
    }

    /// Starts the next incarnation of a client.
    pub(crate) fn spawn_client(self: &Arc<Self>, index: usize, workload: &Arc<dyn Workload>) {
        let life = &self.lives[index];
        let incarnation = life.incarnation.fetch_add(1, Ordering::Relaxed) as u64;
        let mut seeds = Dice::of(self.plan.seed, &[4, index as u64, incarnation]);
        let process = Process::new(index, seeds.next());
        // In half of the worlds, what is ready at the same time runs in another order than it became ready.
        process.put_off(match Dice::of(self.plan.seed, &[8]).per_mille(500) {
            true => 50,
            false => 0,
        });
        if let Some(rate) = self.plan.clock_rate(index) {
            process.set_clock_rate(rate);
        }
        *life.process.lock() = process.clone();
        *life.stopped.lock() = (None, Duration::ZERO);
        *life.woke.lock() = None;
        let client = Client::new(self.clone(), index, process.clone(), seeds.next());
        let (world, workload) = (self.clone(), workload.clone());
        let work = async move {
            workload.client(client).await;
            world
                .trace
                .note(Peer::Client(index), format_args!("is done"));
            world.lives[index].done.store(1, Ordering::Relaxed);
            world.finished.notify_waiters();
        };
        tokio::spawn(process.own(work));
    }

    /// A promise is broken.
    pub fn breach(&self, text: String) {
        self.trace.note("judge", format_args!("BREACH: {text}"));
        self.inner.lock().breaches.push(text);
    }

    /// A call of a client that was made at a time ended with this error. A breach, if nothing that went wrong for the client
    /// until now can be the reason: it may have begun before the call, as long before as it may take until calls succeed again.
    pub fn hear_error(&self, error: &dyn fmt::Display, client: usize, asked: Duration) {
        let text = error.to_string();
        // A subscription tells what a server last said to it, however long nothing has come since.
        let from = match text.contains("did not open in time") {
            true => Duration::ZERO,
            false => asked.saturating_sub(self.plan.deadline + ALIVE_WITHIN),
        };
        // Who stood still heard of nothing meanwhile.
        let woke = self.lives.get(client).and_then(|life| *life.woke.lock());
        let from = match woke {
            Some((at, stood)) if from <= at => from.saturating_sub(stood),
            _ => from,
        };
        let met = |is: &dyn Fn(What) -> bool| self.troubles.any(client, from, self.now(), is);
        if !reason::explains(&self.plan, &text, !self.losses().is_empty(), &met) {
            self.breach(format!("an error for which there is no reason: {text}"));
        }
    }

    /// Whether a client kept a lease that it has renewed every third of it since it asked for it: nothing that a server knew was
    /// lost, no clock that counts jumped, and no renewal was hindered for so long that the lease ended.
    pub fn must_keep_lease(&self, client: usize, asked: Duration, lease: Duration) -> bool {
        let now = self.now();
        let data = self.may_have_lost(asked, now)
            || self.has_evicted(asked, now)
            || self.clock_jumped(asked, now)
            || self.was_suspended(asked, now);
        let clock = || {
            self.troubles
                .any(client, asked, now, |what| what == What::Clock)
        };
        !data && !clock() && !self.was_hindered(client, asked, lease)
    }

    /// Whether a client could not renew a lease in time, all that went wrong since it asked for it taken together: the first
    /// attempt is made when a third of the lease has passed, and those that fail are followed by pauses of up to a third.
    pub fn was_hindered(&self, client: usize, asked: Duration, lease: Duration) -> bool {
        let after = self.plan.deadline + AGAIN;
        self.troubles.lasted(client, asked, self.now(), after) >= lease / 3
    }

    /// Whether anything was found broken so far.
    pub fn is_broken(&self) -> bool {
        !self.inner.lock().breaches.is_empty()
    }

    /// Counts what the clients meet.
    pub fn count(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.inner.lock().tally);
    }

    /// A client met another one.
    pub fn met(&self) {
        self.count(|tally| tally.contended += 1);
    }

    /// What servers took between these times may be gone.
    pub fn lost(&self, from: Duration, to: Duration) {
        self.inner.lock().losses.push((from, to));
    }

    /// Whether something that a server took between these times, or held then, may be gone.
    pub fn may_have_lost(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        let losses = inner.losses.iter();
        losses
            .into_iter()
            .any(|(begin, end)| *begin <= to && from <= *end)
    }

    /// What is done next by a client that aims at a loss: when that loses everything from, and when it happens.
    pub fn next_loss(&self, within: Duration) -> Option<(Duration, Duration)> {
        let now = self.now();
        let ahead = |fault: &&Fault| now < fault.at && fault.at <= now + within;
        let mut losses = self.plan.faults.iter().filter(ahead);
        losses.find_map(|fault| Some((fault.at.saturating_sub(fault.kind.lag()?), fault.at)))
    }

    /// Whether keys of one slot may be of different times: a server lost writes in a world in which keys move one by one.
    pub fn may_be_torn(&self) -> bool {
        let moves = |fault: &Fault| matches!(fault.kind, FaultKind::MoveSlots { .. });
        self.plan.faults.iter().any(moves) && self.may_have_lost(Duration::ZERO, self.now())
    }

    /// All times in which data may have been lost.
    pub fn losses(&self) -> Vec<(Duration, Duration)> {
        self.inner.lock().losses.clone()
    }

    /// Data has come under another server's clock.
    pub(crate) fn clock_jumps(&self) {
        let now = self.now();
        self.inner.lock().jumps.push(now);
    }

    /// Whether data came under another server's clock between these times: what was to end then ends earlier or later.
    pub fn clock_jumped(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        inner.jumps.iter().any(|at| from <= *at && *at <= to)
    }

    /// The machine of a client is suspended for this time.
    pub(crate) fn suspends(&self, client: usize, lasts: Duration) {
        let now = self.now();
        let suspension = (client, now, now + lasts);
        self.inner.lock().suspensions.push(suspension);
    }

    /// Whether a machine was suspended between these times: a process cannot know that a lease has ended meanwhile.
    pub fn was_suspended(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        let mut times = inner.suspensions.iter();
        times.any(|(_, at, until)| from <= *until && *at <= to)
    }

    /// Whether the machine of this client was suspended since then.
    pub fn is_suspended_since(&self, client: usize, from: Duration) -> bool {
        let inner = self.inner.lock();
        let mut suspensions = inner.suspensions.iter();
        suspensions.any(|(of, _, until)| *of == client && from <= *until)
    }

    /// For how long a client had stood still that runs on just now.
    pub fn stood_still_until_now(&self, client: usize) -> Option<Duration> {
        let (at, stood) = (*self.lives.get(client)?.woke.lock())?;
        (at == self.now()).then_some(stood)
    }

    /// How long a message may be on the way, unless somebody is silent or hangs.
    pub fn slowest(&self) -> Duration {
        Duration::from_millis(self.plan.weather.slow.1 + self.plan.weather.delay.1)
    }

    /// Whether a call that failed surely did not happen. A call that is repeated because that does no harm is never in doubt, but
    /// if it was sent it may have happened. In worlds with faults the history has another copy of it.
    pub fn surely_failed(&self, error: &redstart::Error, repeatable: bool) -> bool {
        let copied = !self.plan.faults.is_empty() && !error.is_timeout();
        !error.is_in_doubt() && (!repeatable || copied)
    }

    /// A server drops keys.
    pub(crate) fn evicted(&self) {
        let now = self.now();
        self.inner.lock().evictions.push(now);
    }

    /// Whether a server has dropped keys between these times.
    pub fn has_evicted(&self, from: Duration, to: Duration) -> bool {
        let inner = self.inner.lock();
        inner.evictions.iter().any(|at| from <= *at && *at <= to)
    }

    /// Whether the calls to one thing can be explained; a breach if not.
    pub fn explain<M: Model>(&self, what: &str, model: &M, events: &[Event<M::Call>]) {
        let met = history::overlapping(events);
        self.count(|tally| {
            tally.contended += met;
            tally.histories += 1;
        });
        match history::explain(model, events, &self.losses()) {
            Explained::Yes => {}
            Explained::No(call) => self.breach(format!(
                "no order of calls explains the answers of {what}; the first that does not fit: {call}"
            )),
            Explained::Undecided => {
                self.count(|tally| tally.undecided += 1);
                self.trace
                    .note("judge", format_args!("{what}: too many orders to try"));
            }
        }
    }

    /// The time since the world began.
    pub fn now(&self) -> Duration {
        self.trace.now()
    }

    /// A fault has really begun.
    pub(crate) fn happened(&self, name: &'static str) {
        self.troubles.happened(name);
    }

    /// Whether no fault begins any more.
    pub(crate) fn is_over(&self) -> bool {
        self.inner.lock().over
    }

    /// The faults last at least until then.
    pub(crate) fn busy_until(&self, at: Duration) {
        let mut inner = self.inner.lock();
        inner.busy_until = inner.busy_until.max(at);
    }

    /// The server behind the sentinels that takes writes.
    pub(crate) fn master(&self) -> usize {
        self.inner.lock().master
    }

    pub(crate) fn set_master(&self, index: usize) {
        self.inner.lock().master = index;
    }

    /// The URL of the store.
    pub fn url(&self) -> &'static str {
        match self.plan.shape {
            Shape::Single | Shape::Separate => "redis://db0:6379",
            Shape::Sentinel => "redis+sentinel://sentinel2:6379,sentinel3:6379,sentinel4:6379/main",
            Shape::Cluster => "redis+cluster://db0:6379,db1:6379,db2:6379",
        }
    }

    /// A store for the process that runs now.
    pub async fn store(&self) -> Store {
        self.store_at(self.url()).await
    }

    /// A store at another URL.
    pub async fn store_at(&self, url: &str) -> Store {
        loop {
            let builder = Store::builder(url).deadline(self.plan.deadline).lazy();
            match builder.connect().await {
                Ok(store) => return store,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// How many milliseconds a key still has on the servers, also on those that are down now. `None` if it is gone from all
    /// of them; -1 if that is not known or never.
    pub fn remaining(&self, key: &str) -> Option<i64> {
        let words = ["PTTL", key].map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let servers = self.servers[..self.plan.servers()].iter();
        let masters = servers.filter(|server| server.role() == Role::Master);
        let left = masters.map(|server| match server.engine().session().execute(&words) {
            Executed::Reply(Reply::Int(left)) => left,
            _ => -1,
        });
        left.filter(|left| *left != -2).max()
    }

    /// Whether a server serves and has no such key.
    pub fn is_free(&self, server: usize, key: &str) -> bool {
        let server = &self.servers[server];
        let words = ["EXISTS", key].map(|word| Bytes::copy_from_slice(word.as_bytes()));
        let found = || server.engine().session().execute(&words);
        server.is_up() && matches!(found(), Executed::Reply(Reply::Int(0)))
    }

    /// What a command finds on each server that owns data and serves.
    fn ask(&self, words: &[&[u8]]) -> Vec<Reply> {
        let words: Vec<_> = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word))
            .collect();
        let servers = self.servers[..self.plan.servers()].iter();
        let masters = servers.filter(|server| server.role() == Role::Master && server.is_up());
        let asked = masters.filter_map(|server| match server.engine().session().execute(&words) {
            Executed::Reply(reply) => Some(reply),
            Executed::Blocked(_) => None,
        });
        asked.collect()
    }

    /// All keys, over all servers that own them, with their remaining time in milliseconds (-1: none).
    pub fn keys(&self) -> Vec<(String, i64)> {
        let mut found = Vec::new();
        for key in self.ask(&[b"KEYS", b"*"]).iter().flat_map(items) {
            for left in self.ask(&[b"PTTL", key]) {
                if let Reply::Int(left @ (-1 | 0..)) = left {
                    found.push((String::from_utf8_lossy(key).into_owned(), left));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// All hashes whose keys begin so, with their fields.
    pub fn hashes(&self, prefix: &str) -> Vec<(String, Vec<Bytes>)> {
        let mut found = Vec::new();
        let pattern = format!("{prefix}*");
        for key in self
            .ask(&[b"KEYS", pattern.as_bytes()])
            .iter()
            .flat_map(items)
        {
            let fields = self.ask(&[b"HKEYS", key]);
            let fields = fields.iter().flat_map(items).cloned().collect();
            found.push((String::from_utf8_lossy(key).into_owned(), fields));
        }
        found
    }

    /// All lists whose keys begin so, with their items; `None` if a server does not answer now.
    pub fn lists(&self, prefix: &str) -> Option<Vec<(String, Vec<Bytes>)>> {
        let mut found = Vec::new();
        let pattern = format!("{prefix}*");
        let keys = self.ask(&[b"KEYS", pattern.as_bytes()]);
        if keys.iter().any(|reply| matches!(reply, Reply::Error(_))) {
            return None;
        }
        for key in keys.iter().flat_map(items) {
            let listed = self.ask(&[b"LRANGE", key, b"0", b"-1"]);
            let listed = listed.iter().flat_map(items).cloned().collect();
            found.push((String::from_utf8_lossy(key).into_owned(), listed));
        }
        Some(found)
    }

    /// The members of a sorted set.
    pub fn members(&self, key: &str) -> BTreeSet<String> {
        let found = self.ask(&[b"ZRANGE", key.as_bytes(), b"0", b"-1"]);
        let members = found.iter().flat_map(items);
        members
            .map(|member| String::from_utf8_lossy(member).into_owned())
            .collect()
    }
}

/// The strings in a list.
fn items(reply: &Reply) -> impl Iterator<Item = &Bytes> {
    let items = match reply {
        Reply::Array(items) => &items[..],
        _ => &[],
    };
    items.iter().filter_map(|item| match item {
        Reply::Bulk(text) => Some(text),
        _ => None,
    })
}
