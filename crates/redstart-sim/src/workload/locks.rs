//! The other locks: fair mutex, readers and writers, semaphore, leader. Never more holders than may be, tokens that rise,
//! and everything free again after the leases.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Result, Store,
    locking::{FairMutex, FenceToken, Guard, Leader, Leadership, Released, RwLock, Semaphore},
    sim::Process,
};

use super::{Attempt, Work, Workload, pauses};
use crate::{client::Client, dice::Dice, world::World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fair,
    ReadWrite,
    Semaphore,
    Leader,
}

pub(super) struct Holding {
    kind: Kind,
    ttl: Duration,
    permits: NonZeroU32,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    count: u64,
    holds: BTreeMap<u64, Hold>,
    /// The highest token that a caller has seen.
    highest: u64,
}

/// Somebody holds something.
struct Hold {
    client: usize,
    /// Nobody else may hold anything meanwhile.
    alone: bool,
    /// When the request was sent.
    from: Duration,
    process: Arc<Process>,
    is_valid: Box<dyn Fn() -> bool + Send>,
}

impl Hold {
    /// By the clock of its process.
    fn is_valid(&self) -> bool {
        self.process.within(|| (self.is_valid)())
    }
}

/// What was granted.
enum Granted {
    Shared(Guard<()>),
    Alone(Guard<FenceToken>),
    Office(Leadership),
}

impl Granted {
    fn is_valid(&self) -> bool {
        match self {
            Self::Shared(guard) => guard.is_valid(),
            Self::Alone(guard) => guard.is_valid(),
            Self::Office(leadership) => leadership.is_valid(),
        }
    }

    fn token(&self) -> Option<u64> {
        match self {
            Self::Shared(_) => None,
            Self::Alone(guard) => Some(guard.fence().get()),
            Self::Office(leadership) => Some(leadership.term().get()),
        }
    }

    fn look(&self) -> Box<dyn Fn() -> bool + Send> {
        match self {
            Self::Shared(guard) => {
                let lease = guard.lease();
                Box::new(move || lease.is_valid())
            }
            Self::Alone(guard) => {
                let lease = guard.lease();
                Box::new(move || lease.is_valid())
            }
            Self::Office(leadership) => {
                let lease = leadership.lease();
                Box::new(move || lease.is_valid())
            }
        }
    }

    async fn release(self) -> Result<Released> {
        match self {
            Self::Shared(guard) => guard.release().await,
            Self::Alone(guard) => guard.release().await,
            Self::Office(leadership) => leadership.resign().await,
        }
    }
}

/// One of the locks.
enum Lock {
    Fair(FairMutex),
    ReadWrite(RwLock),
    Semaphore(Semaphore),
    Leader(Leader),
}

impl Lock {
    /// Asks for it; `None` does not wait. `reads` is for those that have readers.
    async fn ask(&self, wait: Option<Duration>, reads: bool) -> Result<Option<Granted>> {
        let granted = match (self, wait) {
            (Self::Fair(lock), None) => lock.try_lock().await?.map(Granted::Alone),
            (Self::Fair(lock), Some(wait)) => lock.lock(wait).await?.map(Granted::Alone),
            (Self::ReadWrite(lock), None) if reads => lock.try_read().await?.map(Granted::Shared),
            (Self::ReadWrite(lock), Some(wait)) if reads => {
                lock.read(wait).await?.map(Granted::Shared)
            }
            (Self::ReadWrite(lock), None) => lock.try_write().await?.map(Granted::Alone),
            (Self::ReadWrite(lock), Some(wait)) => lock.write(wait).await?.map(Granted::Alone),
            (Self::Semaphore(lock), None) => lock.try_acquire().await?.map(Granted::Shared),
            (Self::Semaphore(lock), Some(wait)) => lock.acquire(wait).await?.map(Granted::Shared),
            (Self::Leader(office), None) => office.try_campaign().await?.map(Granted::Office),
            (Self::Leader(office), Some(wait)) => office.campaign(wait).await?.map(Granted::Office),
        };
        Ok(granted)
    }
}

impl Holding {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[30]);
        let kinds = [Kind::Fair, Kind::ReadWrite, Kind::Semaphore, Kind::Leader];
        Self {
            kind: *dice.pick(&kinds),
            ttl: dice.millis(1000, 5000),
            permits: NonZeroU32::MIN.saturating_add(dice.below(2) as u32),
            state: Arc::default(),
        }
    }

    fn ttl_of(&self, client: &Client) -> Duration {
        match client.has_other_settings() {
            true => self.ttl / 2,
            false => self.ttl,
        }
    }

    fn lock(&self, client: &Client, store: &Store, name: &str) -> Lock {
        let ttl = self.ttl_of(client);
        let made = match self.kind {
            Kind::Fair => {
                let builder = FairMutex::builder(store, "sim", name);
                builder.ttl(ttl).build().map(Lock::Fair)
            }
            Kind::ReadWrite => {
                let builder = RwLock::builder(store, "sim", name);
                builder.ttl(ttl).build().map(Lock::ReadWrite)
            }
            Kind::Semaphore => {
                let builder = Semaphore::builder(store, "sim", name, self.permits);
                builder.ttl(ttl).build().map(Lock::Semaphore)
            }
            Kind::Leader => {
                let id = format!("client{}", client.index);
                let builder = Leader::builder(store, "sim", name).id(&id);
                builder.ttl(ttl).build().map(Lock::Leader)
            }
        };
        match made {
            Ok(lock) => lock,
            Err(error) => panic!("a lock cannot be made: {error}"),
        }
    }

    /// Something was granted: are there too many holders now?
    fn granted(&self, client: &Client, granted: &Granted, from: Duration, seen: u64) -> u64 {
        let world = &client.world;
        let now = world.now();
        let alone = !matches!(granted, Granted::Shared(_));
        client.note(format_args!("holds, token {:?}", granted.token()));
        let mut breaches = Vec::new();
        let mut state = self.state.lock();
        let others = state.holds.values().filter(|hold| {
            // Either grant may have been lost with its server: the answer to the older one may come last.
            let since = hold.from.min(from);
            let excused = world.may_have_lost(since, now)
                || world.clock_jumped(since, now)
                || world.was_suspended(since, now);
            hold.is_valid() && !excused
        });
        let others: Vec<_> = others.collect();
        let most = match self.kind {
            Kind::Semaphore => self.permits.get() as usize,
            _ => usize::MAX,
        };
        let crowded = others.len() >= most || others.iter().any(|hold| hold.alone || alone);
        if granted.is_valid() && crowded {
            let holders: Vec<_> = others.iter().map(|hold| hold.client).collect();
            breaches.push(format!(
                "client {} was granted a {:?} lock while {holders:?} hold it",
                client.index, self.kind
            ));
        }
        if let Some(token) = granted.token() {
            // Only a server that lost the last token and whose clock is behind can issue it again.
            let excused = world.plan.clocks_differ && world.may_have_lost(Duration::ZERO, now);
            if token <= seen && !excused {
                breaches.push(format!(
                    "the token {token} is not higher than {seen}, which was granted before"
                ));
            }
            state.highest = state.highest.max(token);
        }
        state.count += 1;
        let number = state.count;
        let hold = Hold {
            client: client.index,
            alone,
            from,
            process: client.process().clone(),
            is_valid: granted.look(),
        };
        state.holds.insert(number, hold);
        drop(state);
        breaches.into_iter().for_each(|breach| world.breach(breach));
        number
    }

    /// What the servers did: refusals need a reason, and nobody passes those who wait.
    fn judge_views(&self, world: &World) {
        for (from, at, text) in world.seen.locks.oddities() {
            if !world.may_have_lost(from, at) && !world.clock_jumped(from, at) {
                world.breach(format!("at {at:?}: {text}"));
            }
        }
    }

    async fn operate(&self, client: &mut Client, lock: &Lock) {
        let world = client.world.clone();
        let (from, seen) = (world.now(), self.state.lock().highest);
        let wait = match client.dice.per_mille(400) {
            true => None,
            false => Some(client.dice.millis(0, 4000)),
        };
        let reads = client.dice.per_mille(600);
        let limit = client.longest(wait.unwrap_or_default()) + world.plan.deadline;
        let twin = client.twin();
        let call = client.perhaps_dropped(100, lock.ask(wait, reads));
        let granted = match twin.timed("the lock", limit, call).await {
            Some(Ok(Some(granted))) => granted,
            Some(Ok(None)) => return world.met(),
            _ => return,
        };
        let number = self.granted(client, &granted, from, seen);
        let mut ended = false;
        for pause in pauses(client, self.ttl_of(client), 3) {
            tokio::time::sleep(pause).await;
            let valid = granted.is_valid();
            let ttl = self.ttl_of(client);
            if !ended && !valid && world.must_keep_lease(client.index, from, ttl) {
                world.breach(format!(
                    "client {} lost a {:?} lock although nothing kept it from renewing it",
                    client.index, self.kind
                ));
            }
            if ended && valid {
                world.breach("a lease that had ended is valid again".to_owned());
            }
            ended |= !valid;
        }
        // From here on it counts as given back, whatever becomes of the call.
        self.state.lock().holds.remove(&number);
        client.note(format_args!("gives it back"));
        match client.dice.below(3) {
            0 => drop(granted),
            // Up to three requests, and again if it is in doubt whether they did it.
            _ => drop(client.call("release", 6, granted.release()).await),
        }
    }
}

impl Workload for Holding {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let lock = self.lock(&client, &store, "lock");
            while client.next_operation() {
                client.rest(0, 800).await;
                self.operate(&mut client, &lock).await;
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        // Another one each time: what arrived too late has the one before.
        let name = format!("works{}-{}", client.index, client.world.now().as_micros());
        let lock = self.lock(client, store, &name);
        Box::pin(async move {
            let failed = |error: redstart::Error| error.to_string();
            let granted = lock.ask(None, false).await.map_err(failed)?;
            let granted = granted.ok_or_else(|| format!("{name} is not free"))?;
            granted.release().await.map_err(failed).map(drop)
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            // Every lease has ended by then, also that of a request or a place in line that is still on its way, and
            // nothing renews it.
            let behind = match client.world.plan.clocks_differ {
                true => Duration::from_secs(4),
                false => Duration::ZERO,
            };
            self.judge_views(&client.world);
            let late = client.world.slowest();
            tokio::time::sleep(self.ttl + behind + late + Duration::from_secs(1)).await;
            for (key, ttl) in client.world.keys() {
                if !key.ends_with(":fence") && ttl < 0 {
                    client.world.breach(format!("{key} never expires"));
                }
            }
            let store = client.store().await;
            let lock = self.lock(&client, &store, "lock");
            let (from, seen) = (client.world.now(), self.state.lock().highest);
            self.state.lock().holds.clear();
            match lock.ask(None, false).await {
                Ok(Some(granted)) => {
                    self.granted(&client, &granted, from, seen);
                    drop(granted.release().await);
                }
                Ok(None) => {
                    let text = format!("a {:?} lock is held by nobody and not free", self.kind);
                    client.world.breach(text);
                }
                Err(error) => client
                    .world
                    .breach(format!("the lock cannot be taken: {error}")),
            }
        })
    }

    fn killed(&self, client: usize) {
        let mut state = self.state.lock();
        state.holds.retain(|_, hold| hold.client != client);
    }
}
