//! Locks: one holder at a time, tokens that rise, holders that are told, and nothing left behind.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    locking::{FenceToken, Guard, Lease, LockedRun, Mutex as Lock},
};

use super::{Work, Workload};
use crate::{client::Client, dice::Dice, world::World};

pub(super) struct Locking {
    ttl: Duration,
    names: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    holds: Vec<Hold>,
    count: u64,
    /// By lock: the highest token that a caller has seen.
    highest: BTreeMap<String, u64>,
}

struct Hold {
    number: u64,
    lock: String,
    client: usize,
    /// When the request was sent.
    from: Duration,
    lease: Lease,
}

impl Locking {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[10]);
        Self {
            ttl: dice.millis(1000, 5000),
            names: dice.between(1, 2),
            state: Mutex::default(),
        }
    }

    fn lock(&self, store: &Store, name: &str) -> Lock {
        match Lock::builder(store, "sim", name).ttl(self.ttl).build() {
            Ok(lock) => lock,
            Err(error) => panic!("a lock cannot be made: {error}"),
        }
    }

    /// The highest token seen so far: whoever asks now must get a higher one.
    fn seen(&self, name: &str) -> u64 {
        self.state.lock().highest.get(name).copied().unwrap_or(0)
    }

    /// A lock was granted: is anybody else's lease still valid?
    fn granted(&self, client: &Client, name: &str, lease: Lease, asked: (u64, Duration)) -> u64 {
        let (seen, from) = asked;
        let world = &client.world;
        let token = lease.fence().get();
        client.note(format_args!("holds {name} with token {token}"));
        let mut state = self.state.lock();
        let mut breaches = Vec::new();
        for other in state.holds.iter().filter(|hold| hold.lock == name) {
            // The other one's grant may have been lost with its server.
            let excused = world.may_have_lost(other.from, world.now());
            if lease.is_valid() && other.lease.is_valid() && !excused {
                breaches.push(format!(
                    "client {} was granted {name} while client {} holds it",
                    client.index, other.client
                ));
            }
        }
        if token <= seen {
            breaches.push(format!(
                "the token {token} of {name} is not higher than {seen}, which was granted before"
            ));
        }
        state.count += 1;
        let number = state.count;
        let highest = state.highest.entry(name.to_owned()).or_default();
        *highest = token.max(*highest);
        state.holds.push(Hold {
            number,
            lock: name.to_owned(),
            client: client.index,
            from,
            lease,
        });
        drop(state);
        breaches.into_iter().for_each(|breach| world.breach(breach));
        number
    }

    fn given_back(&self, number: u64) {
        self.state.lock().holds.retain(|hold| hold.number != number);
    }

    async fn operate(&self, client: &mut Client, store: &Store, lock: &Lock, name: &str) {
        let deadline = client.world.plan.deadline;
        let asked = (self.seen(name), client.world.now());
        let wait = client.dice.millis(0, 4000);
        let guard: Option<Guard<FenceToken>> = match client.dice.below(3) {
            0 => {
                let call = lock.try_lock();
                let probe = Probe::of(client);
                let call = client.perhaps_dropped(100, call);
                let locked = probe.timed("try_lock", deadline, call).await;
                locked.and_then(Result::ok).flatten()
            }
            1 => {
                let call = lock.lock(wait);
                let probe = Probe::of(client);
                let call = client.perhaps_dropped(100, call);
                let locked = probe.timed("lock", wait + deadline, call).await;
                locked.and_then(Result::ok).flatten()
            }
            _ => return self.run_with(client, lock, name, wait, asked).await,
        };
        let Some(guard) = guard else {
            return;
        };
        let number = self.granted(client, name, guard.lease(), asked);
        for _ in 0..client.dice.between(0, 4) {
            client.rest(0, 800).await;
            if !guard.is_valid() {
                break;
            }
        }
        // From here on it counts as given back, whatever becomes of the call.
        self.given_back(number);
        client.note(format_args!("gives {name} back"));
        match client.dice.below(3) {
            0 => drop(guard),
            _ => {
                let release = guard.release();
                let probe = Probe::of(client);
                let release = client.perhaps_dropped(100, release);
                // Up to three requests, and again if it is in doubt whether they did it.
                let released = probe.timed("release", 6 * deadline, release).await;
                drop(released);
            }
        }
        if client.dice.per_mille(200) {
            let settled = tokio::time::timeout(deadline * 4, store.settle()).await;
            drop(settled);
        }
    }

    async fn run_with(
        &self,
        client: &mut Client,
        lock: &Lock,
        name: &str,
        wait: Duration,
        asked: (u64, Duration),
    ) {
        let holds = client.dice.millis(0, 2500);
        let number = Mutex::new(None);
        let run = lock.with(wait, |lease| {
            *number.lock() = Some(self.granted(client, name, lease, asked));
            tokio::time::sleep(holds)
        });
        let run = run.await;
        if let Some(number) = number.into_inner() {
            self.given_back(number);
        }
        let outcome = match run {
            Ok(LockedRun::Done(())) => "done",
            Ok(LockedRun::Busy) => "busy",
            Ok(LockedRun::Lost(_)) => "lost",
            Err(_) => "failed",
        };
        client.note(format_args!("ran with {name}: {outcome}"));
    }
}

/// Measures calls while the client lends itself to them.
struct Probe(Client);

impl Probe {
    fn of(client: &Client) -> Self {
        Self(client.twin())
    }

    async fn timed<T>(&self, name: &str, limit: Duration, call: impl Future<Output = T>) -> T {
        self.0.timed(name, limit, call).await
    }
}

impl Workload for Locking {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            while client.next_operation() {
                client.rest(0, 1000).await;
                let name = format!("lock{}", client.dice.below(self.names));
                let lock = self.lock(&store, &name);
                self.operate(&mut client, &store, &lock, &name).await;
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            // Every lease has ended by then, and nothing renews it.
            tokio::time::sleep(self.ttl + Duration::from_secs(1)).await;
            let store = client.store().await;
            for number in 0..self.names {
                let name = format!("lock{number}");
                let lock = self.lock(&store, &name);
                let seen = self.seen(&name);
                match lock.lock(Duration::from_secs(5)).await {
                    Ok(Some(guard)) => {
                        if guard.fence().get() <= seen {
                            client
                                .world
                                .breach(format!("the token of {name} fell back"));
                        }
                        drop(guard.release().await);
                    }
                    Ok(None) => client
                        .world
                        .breach(format!("{name} is held by nobody and not free")),
                    Err(error) => client
                        .world
                        .breach(format!("{name} cannot be taken: {error}")),
                }
            }
            for (key, ttl) in client.world.keys() {
                if !key.ends_with(":fence") && ttl < 0 {
                    client.world.breach(format!("{key} never expires"));
                }
            }
        })
    }

    fn killed(&self, client: usize) {
        self.state.lock().holds.retain(|hold| hold.client != client);
    }
}
