//! Locks: one holder at a time, tokens that rise, answers that fit together, and nothing left behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redstart::{
    Store,
    locking::{FenceToken, Guard, Lease, LockedRun, Mutex as Lock, Released},
    sim::Process,
};

use super::{Attempt, Work, Workload, pauses};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    world::World,
};

pub(super) struct Locking {
    ttl: Duration,
    names: u64,
    state: Arc<Mutex<State>>,
    histories: BTreeMap<String, History<Call>>,
}

/// What happens to a lock. The numbers are those of the requests for it.
#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// Whether it was granted, if that is known.
    Ask(usize, Option<bool>),
    /// Its holder gave it back.
    Release(usize),
    /// The server said that it is not the caller's any more.
    WasLost(usize),
    /// Its lease ended.
    Expire(usize),
}

/// Who holds a lock, as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Nobody,
    Request(usize),
    Unknown,
}

struct OneHolder;

impl Model for OneHolder {
    type State = Holder;
    type Call = Call;

    fn initial(&self) -> Holder {
        Holder::Nobody
    }

    fn unknown(&self) -> Holder {
        Holder::Unknown
    }

    fn step(&self, state: &Holder, call: &Call) -> Option<Holder> {
        match (call, state) {
            (Call::Ask(_, Some(true) | None), Holder::Request(_)) => None,
            (Call::Ask(number, Some(true) | None), _) => Some(Holder::Request(*number)),
            // Only because somebody holds it.
            (Call::Ask(_, Some(false)), Holder::Nobody) => None,
            (Call::Ask(_, Some(false)), held) => Some(held.clone()),
            (Call::Release(number) | Call::Expire(number), Holder::Request(holder)) => {
                (number == holder).then_some(Holder::Nobody)
            }
            (Call::Release(_) | Call::Expire(_), Holder::Nobody) => None,
            (Call::Release(_) | Call::Expire(_), Holder::Unknown) => Some(Holder::Unknown),
            (Call::WasLost(number), Holder::Request(holder)) if number == holder => None,
            (Call::WasLost(_), held) => Some(held.clone()),
        }
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Ask(number, _) => Some(Call::Ask(*number, None)),
            Call::WasLost(_) => None,
            other => Some(other.clone()),
        }
    }
}

/// A request for a lock, as it goes on.
#[derive(Clone, Copy)]
struct Asked {
    /// The highest token that was seen before.
    seen: u64,
    from: Duration,
    /// Its number in the history of the lock.
    number: usize,
}

#[derive(Default)]
struct State {
    holds: Vec<Hold>,
    count: u64,
    /// By lock: the highest token that a caller has seen.
    highest: BTreeMap<String, u64>,
    /// Locks and tokens that a caller has seen.
    heard: BTreeSet<(String, u64)>,
}

struct Hold {
    number: u64,
    lock: String,
    client: usize,
    /// When the request was sent.
    from: Duration,
    lease: Lease,
    process: Arc<Process>,
}

impl Hold {
    /// Whether its process thinks that it holds the lock, by its own clock.
    fn is_valid(&self) -> bool {
        self.process.within(|| self.lease.is_valid())
    }
}

/// Looks when the server's lease ends: from then on its holder must not think that it has the lock.
fn watch(world: &Arc<World>, state: &Arc<Mutex<State>>, number: u64) {
    let (name, text) = {
        let state = state.lock();
        let Some(hold) = state.holds.iter().find(|hold| hold.number == number) else {
            return;
        };
        let now = world.now();
        let excused = world.may_have_lost(hold.from, now)
            || world.clock_jumped(hold.from, now)
            || world.was_suspended(hold.from, now);
        if excused || !hold.is_valid() {
            return;
        }
        let text = format!(
            "client {} thinks that it holds {} after its lease has ended",
            hold.client, hold.lock
        );
        (hold.lock.clone(), text)
    };
    let left = match world.remaining(&format!("sim:mutex:{{{name}}}")) {
        None => return world.breach(text),
        // Not to be told now.
        Some(left @ ..0) => left.unsigned_abs() * 50,
        Some(left) => left.unsigned_abs() + 1,
    };
    let (again, state) = (world.clone(), state.clone());
    let left = Duration::from_millis(left);
    world
        .agenda
        .after(left, move || watch(&again, &state, number));
}

impl Locking {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[10]);
        let (ttl, names) = (dice.millis(1000, 5000), dice.between(1, 2));
        let histories = (0..names).map(|name| (format!("lock{name}"), History::default()));
        Self {
            ttl,
            names,
            state: Arc::default(),
            histories: histories.collect(),
        }
    }

    /// A lock is asked for. It may be granted from now on, and ends on its own when its lease does.
    fn ask(&self, client: &Client, name: &str) -> Asked {
        let world = &client.world;
        let from = world.now();
        let history = &self.histories[name];
        let number = history.begin(Call::Ask(0, None), from);
        history.replace(number, Call::Ask(number, None));
        // A server rounds to milliseconds. If its clock is another one later, the lease may end at any time.
        let early = match world.plan.clocks_differ {
            true => Duration::ZERO,
            false => self.ttl_of(client) - Duration::from_millis(2),
        };
        history.begin(Call::Expire(number), from + early);
        Asked {
            seen: self.seen(name),
            from,
            number,
        }
    }

    /// The answer to a request: granted, busy, or unknown.
    fn answered(&self, world: &World, name: &str, asked: Asked, granted: Option<bool>) {
        let history = &self.histories[name];
        match granted {
            Some(_) => history.end(asked.number, Call::Ask(asked.number, granted), world.now()),
            // If it was granted all the same, it is released in the background.
            None => {
                history.begin(Call::Release(asked.number), asked.from);
            }
        }
    }

    /// Grants to copies of requests that arrived after their lock was released, or after their caller had gone: nobody
    /// holds it until the lease ends.
    fn add_late_grants(&self, world: &World, name: &str) {
        let history = &self.histories[name];
        let (lock, late) = (format!("sim:mutex:{{{name}}}"), &world.seen.late_grants);
        let once_more = late.of(&lock).into_iter().map(|at| (at, true));
        let state = self.state.lock();
        let heard_of = |token| state.heard.contains(&(name.to_owned(), token));
        // The history may have such a grant already, as that of a call in doubt.
        let unheard = late.first(&lock).into_iter();
        let unheard = unheard.filter(|(_, token)| !heard_of(*token));
        for (at, certain) in once_more.chain(unheard.map(|(at, _)| (at, false))) {
            let number = history.begin(Call::Ask(0, None), at);
            history.replace(number, Call::Ask(number, None));
            if certain {
                history.end(number, Call::Ask(number, Some(true)), at);
            }
            let early = match world.plan.clocks_differ {
                true => Duration::ZERO,
                // It may be one of a process with other settings.
                false if world.plan.settings_differ => self.ttl / 2 - Duration::from_millis(2),
                false => self.ttl - Duration::from_millis(2),
            };
            history.begin(Call::Expire(number), at + early);
            // Copies of the release may arrive late too.
            history.begin(Call::Release(number), at);
        }
    }

    /// How long a client's lease lasts.
    fn ttl_of(&self, client: &Client) -> Duration {
        match client.has_other_settings() {
            true => self.ttl / 2,
            false => self.ttl,
        }
    }

    fn lock(&self, client: &Client, store: &Store, name: &str) -> Lock {
        let ttl = self.ttl_of(client);
        match Lock::builder(store, "sim", name).ttl(ttl).build() {
            Ok(lock) => lock,
            Err(error) => panic!("a lock cannot be made: {error}"),
        }
    }

    /// The highest token seen so far: anyone who asks now must get a higher one.
    fn seen(&self, name: &str) -> u64 {
        self.state.lock().highest.get(name).copied().unwrap_or(0)
    }

    /// A lock was granted: is anybody else's lease still valid?
    fn granted(&self, client: &Client, name: &str, lease: Lease, asked: Asked) -> u64 {
        let Asked { seen, from, .. } = asked;
        let world = &client.world;
        self.answered(world, name, asked, Some(true));
        let token = lease.fence().get();
        client.note(format_args!("holds {name} with token {token}"));
        let mut state = self.state.lock();
        let mut breaches = Vec::new();
        for other in state.holds.iter().filter(|hold| hold.lock == name) {
            // Either grant may have been lost with its server: the answer to the older one may come last.
            let (since, now) = (other.from.min(from), world.now());
            let excused = world.may_have_lost(since, now)
                || world.clock_jumped(since, now)
                || world.was_suspended(since, now);
            if lease.is_valid() && other.is_valid() && !excused {
                breaches.push(format!(
                    "client {} was granted {name} while client {} holds it",
                    client.index, other.client
                ));
            }
        }
        // Only a server that lost the last token and whose clock is behind can issue it again.
        let excused = world.plan.clocks_differ && world.may_have_lost(Duration::ZERO, world.now());
        if token <= seen && !excused {
            breaches.push(format!(
                "the token {token} of {name} is not higher than {seen}, which was granted before"
            ));
        }
        state.count += 1;
        let number = state.count;
        let highest = state.highest.entry(name.to_owned()).or_default();
        *highest = token.max(*highest);
        state.heard.insert((name.to_owned(), token));
        state.holds.push(Hold {
            number,
            lock: name.to_owned(),
            client: client.index,
            from,
            lease,
            process: client.process().clone(),
        });
        drop(state);
        breaches.into_iter().for_each(|breach| world.breach(breach));
        watch(world, &self.state, number);
        number
    }

    /// The guard, if the lock was granted; if not, the answer is noted.
    fn heard(
        &self,
        world: &World,
        name: &str,
        asked: Asked,
        locked: Option<redstart::Result<Option<Guard<FenceToken>>>>,
    ) -> Option<Guard<FenceToken>> {
        match locked {
            Some(Ok(Some(guard))) => return Some(guard),
            Some(Ok(None)) => {
                world.met();
                self.answered(world, name, asked, Some(false));
            }
            _ => self.answered(world, name, asked, None),
        }
        None
    }

    /// A lease has ended before it was given back. It is renewed, so there must be a reason.
    fn lost(&self, client: &Client, name: &str, asked: Asked) {
        let world = &client.world;
        client.note(format_args!("has lost {name}"));
        if world.must_keep_lease(client.index, asked.from, self.ttl_of(client)) {
            world.breach(format!(
                "client {} lost {name} although nothing kept it from renewing it",
                client.index
            ));
        }
    }

    fn given_back(&self, number: u64) {
        self.state.lock().holds.retain(|hold| hold.number != number);
    }

    async fn operate(&self, client: &mut Client, store: &Store, lock: &Lock, name: &str) {
        let deadline = client.world.plan.deadline;
        let world = client.world.clone();
        let asked = self.ask(client, name);
        let wait = client.dice.millis(0, 4000);
        let guard: Option<Guard<FenceToken>> = match client.dice.below(3) {
            0 => {
                let call = lock.try_lock();
                let probe = Probe::of(client);
                let call = client.perhaps_dropped(100, call);
                let locked = probe.timed("try_lock", deadline, call).await;
                self.heard(&world, name, asked, locked)
            }
            1 => {
                let limit = client.longest(wait) + deadline;
                let call = lock.lock(wait);
                let probe = Probe::of(client);
                let call = client.perhaps_dropped(100, call);
                let locked = probe.timed("lock", limit, call).await;
                self.heard(&world, name, asked, locked)
            }
            _ => return self.run_with(client, lock, name, wait, asked).await,
        };
        let Some(guard) = guard else {
            return;
        };
        let number = self.granted(client, name, guard.lease(), asked);
        // Some do not look whether they still hold it.
        let careless = client.dice.per_mille(300);
        let mut ended = false;
        for pause in pauses(client, self.ttl_of(client), 4) {
            tokio::time::sleep(pause).await;
            let valid = guard.is_valid();
            if ended && valid {
                world.breach(format!("a lease of {name} that had ended is valid again"));
            }
            if !ended && !valid {
                self.lost(client, name, asked);
            }
            ended |= !valid;
            if ended && !careless {
                break;
            }
        }
        // From here on it counts as given back, whatever becomes of the call.
        self.given_back(number);
        client.note(format_args!("gives {name} back"));
        let history = &self.histories[name];
        let release = history.begin(Call::Release(asked.number), world.now());
        match client.dice.below(3) {
            0 => drop(guard),
            _ => {
                let begun = world.now();
                let call = guard.release();
                let probe = Probe::of(client);
                let call = client.perhaps_dropped(100, call);
                // Up to three requests, and again if it is in doubt whether they did it.
                match probe.timed("release", 6 * deadline, call).await {
                    // If a server lost the lock, or its lease ended while the machine was suspended, this is said of a first
                    // request whose reply was lost.
                    Some(Ok(Released::Released))
                        if world.may_have_lost(asked.from, world.now())
                            || world.is_suspended_since(client.index, asked.from) => {}
                    Some(Ok(Released::Released)) => {
                        history.end(release, Call::Release(asked.number), world.now());
                    }
                    // Its first attempt, or the end of the lease, may be the reason.
                    Some(Ok(Released::AlreadyLost)) => history.add(Event {
                        call: Call::WasLost(asked.number),
                        from: begun,
                        to: Some(world.now()),
                    }),
                    _ => {}
                }
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
        asked: Asked,
    ) {
        let holds = client.dice.millis(0, 2500);
        let number = Mutex::new(None);
        let run = lock.with(wait, |lease| {
            *number.lock() = Some(self.granted(client, name, lease, asked));
            // It is released at the end, also if the process is killed while that is under way.
            self.histories[name].begin(Call::Release(asked.number), asked.from);
            tokio::time::sleep(holds)
        });
        let run = run.await;
        client.heard(&run, asked.from);
        match number.into_inner() {
            Some(number) => self.given_back(number),
            None if matches!(run, Ok(LockedRun::Busy)) => {
                self.answered(&client.world, name, asked, Some(false));
            }
            None => self.answered(&client.world, name, asked, None),
        }
        if matches!(run, Ok(LockedRun::Lost(_))) {
            self.lost(client, name, asked);
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
                let lock = self.lock(&client, &store, &name);
                self.operate(&mut client, &store, &lock, &name).await;
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        // Another one each time: what arrived too late has the one before.
        let name = format!("works{}-{}", client.index, client.world.now().as_micros());
        let lock = self.lock(client, store, &name);
        Box::pin(async move {
            let failed = |error: redstart::Error| error.to_string();
            let guard = lock.try_lock().await.map_err(failed)?;
            let guard = guard.ok_or_else(|| format!("{name} is not free"))?;
            match guard.release().await.map_err(failed)? {
                Released::Released => {}
                Released::AlreadyLost => return Err(format!("{name} was lost at once")),
            }
            match lock.try_lock().await.map_err(failed)? {
                Some(guard) => guard.release().await.map_err(failed).map(drop),
                None => Err(format!("{name} is not free after its release")),
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            for (name, history) in &self.histories {
                self.add_late_grants(&client.world, name);
                client.world.explain(name, &OneHolder, &history.events());
            }
            // Every lease has ended by then, and nothing renews it.
            let behind = match client.world.plan.clocks_differ {
                true => Duration::from_secs(4),
                false => Duration::ZERO,
            };
            tokio::time::sleep(self.ttl + behind + Duration::from_secs(1)).await;
            let store = client.store().await;
            for number in 0..self.names {
                let name = format!("lock{number}");
                let lock = self.lock(&client, &store, &name);
                let seen = self.seen(&name);
                match lock.lock(Duration::from_secs(5)).await {
                    Ok(Some(guard)) => {
                        let world = &client.world;
                        let excused = world.plan.clocks_differ
                            && world.may_have_lost(Duration::ZERO, world.now());
                        if guard.fence().get() <= seen && !excused {
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
