//! A running world: servers, clients, what goes wrong, and what was found to be broken.

mod after;
mod data;
mod past;
mod run;
mod tally;

pub use run::{Outcome, run};
pub use tally::Tally;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{Store, sim::Process};
use tokio::{sync::Notify, time::Instant};

use crate::{
    agenda::Agenda,
    client::Client,
    dice::Dice,
    history::{self, Event, Explained, Model},
    network::{Net, Peer},
    plan::{PARTS, Plan, Shape},
    reason,
    seen::Seen,
    server::{Role, Server},
    slots::Map,
    trace::Trace,
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
}
