//! A lock over five separate servers: one valid holder at a time although servers forget, tokens that rise, no more than a
//! minority of the servers needed to be well, and nothing left behind.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Error, Store,
    locking::{FenceToken, Guard, Lease, LockedRun, Redlock, RedlockBuilder, Released},
    sim::Process,
};

use super::{Attempt, Work, Workload, pauses};
use crate::{client::Client, dice::Dice, plan::UP_BEFORE, world::World};

/// How often the servers are looked at while somebody holds a lock.
const LOOK: Duration = Duration::from_millis(40);
/// The lease of locks that are given back at once: nobody waits for its end.
const LONG: Duration = Duration::from_secs(20);

pub(super) struct Voting {
    ttl: Duration,
    /// How long a server may take, unless that is left to the library.
    timeout: Option<Duration>,
    /// The servers lose nothing, and vote at once after a restart.
    durable: bool,
    names: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    holds: Vec<Hold>,
    count: u64,
    /// By lock: the highest token that a caller has seen.
    highest: BTreeMap<String, u64>,
    /// By lock: who asks for it or holds it.
    busy: BTreeMap<String, Busy>,
}

/// The requests for one lock.
#[derive(Clone, Copy, Default)]
struct Busy {
    /// How many are under way or hold it.
    open: u64,
    /// How many there have been.
    all: u64,
    /// When the last one ended.
    ended: Duration,
}

/// What was known when a request began.
#[derive(Clone, Copy)]
struct Asked {
    from: Duration,
    seen: u64,
    before: Busy,
}

struct Hold {
    number: u64,
    lock: String,
    client: usize,
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

/// Whether what happened since then excuses a second holder. A server that was restarted does not vote, unless it is said to
/// lose nothing, so what it lost is no excuse.
fn is_excused(world: &World, durable: bool, since: Duration) -> bool {
    let now = world.now();
    let broken = world.may_have_lost(since, now) || world.clock_jumped(since, now);
    world.was_suspended(since, now) || durable && broken
}

/// Looks now and then whether the servers would give a lock to somebody else that a process thinks it holds.
fn watch(world: &Arc<World>, voting: (bool, Duration), state: &Arc<Mutex<State>>, number: u64) {
    let (durable, longest) = voting;
    {
        let state = state.lock();
        let Some(hold) = state.holds.iter().find(|hold| hold.number == number) else {
            return;
        };
        if !hold.is_valid() || is_excused(world, durable, hold.from) {
            return;
        }
        let key = format!("sim:redlock:{{{}}}", hold.lock);
        // The uptime is in whole seconds, and so is the time without a vote.
        let grace = Duration::from_secs(longest.as_secs() + 2);
        let votes = |server: &usize| {
            let up = world.now() - world.servers[*server].since();
            (durable || up >= grace) && world.is_free(*server, &key)
        };
        let free = (0..world.plan.servers()).filter(votes).count();
        if free > world.plan.servers() / 2 {
            world.breach(format!(
                "{free} servers would grant {} to others while client {} thinks that it holds it",
                hold.lock, hold.client
            ));
            return;
        }
    }
    let (again, state) = (world.clone(), state.clone());
    let look = move || watch(&again, voting, &state, number);
    world.agenda.after(LOOK, look);
}

impl Voting {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[40]);
        let ttl = dice.millis(2000, 3999);
        // Connections are made within that time too.
        let timeout = match world.plan.weather.delay.1 {
            0..=3 => *dice.pick(&[None, None, Some(Duration::from_millis(250))]),
            _ => Some(Duration::from_millis(250)),
        };
        Self {
            ttl,
            timeout,
            durable: dice.per_mille(300),
            names: dice.between(1, 2),
            state: Arc::default(),
        }
    }

    fn ttl_of(&self, client: &Client) -> Duration {
        match client.has_other_settings() {
            true => self.ttl / 2,
            false => self.ttl,
        }
    }

    /// How long one server may take.
    fn timeout_of(&self, client: &Client) -> Duration {
        let usual = self.ttl_of(client) / 20;
        self.timeout
            .unwrap_or(usual.min(Duration::from_millis(200)))
    }

    fn made(&self, builder: RedlockBuilder) -> Redlock {
        let builder = match self.timeout {
            Some(timeout) => builder.server_timeout(timeout),
            None => builder,
        };
        match builder.build() {
            Ok(lock) => lock,
            Err(error) => panic!("a quorum lock cannot be made: {error}"),
        }
    }

    fn lock(&self, client: &Client, stores: &[Store], name: &str) -> Redlock {
        let builder = Redlock::builder(stores.to_vec(), "sim", name)
            .ttl(self.ttl_of(client))
            .longest_lease(self.ttl);
        self.made(match self.durable {
            true => builder.durable(),
            false => builder,
        })
    }

    /// A lock with a long lease, for times in which no server forgets.
    fn long(&self, stores: &[Store], name: &str) -> Redlock {
        let builder = Redlock::builder(stores.to_vec(), "sim", name).ttl(LONG);
        self.made(builder.longest_lease(LONG).durable())
    }

    fn ask(&self, world: &World, name: &str) -> Asked {
        let mut state = self.state.lock();
        let seen = state.highest.get(name).copied().unwrap_or(0);
        let busy = state.busy.entry(name.to_owned()).or_default();
        let before = *busy;
        busy.open += 1;
        busy.all += 1;
        Asked {
            from: world.now(),
            seen,
            before,
        }
    }

    /// A request was refused, or failed, or what it got was given back.
    fn over(&self, world: &World, name: &str) {
        if let Some(busy) = self.state.lock().busy.get_mut(name) {
            busy.open -= 1;
            busy.ended = world.now();
        }
    }

    /// Where nothing goes wrong, a lock is refused only because somebody else asks for it or has it.
    fn refused(&self, client: &Client, name: &str, asked: Asked) {
        let world = &client.world;
        world.met();
        let all = self.state.lock().busy[name].all;
        // What was given back before is free within a deadline.
        let rests = asked.from > asked.before.ended + world.plan.deadline;
        let alone = asked.before.open == 0 && rests && all == asked.before.all + 1;
        let calm = world.plan.faults.is_empty() && world.plan.weather.slow.1 == 0;
        if alone && calm {
            world.breach(format!("{name} is refused, and nobody has it"));
        }
    }

    fn granted(&self, client: &Client, name: &str, lease: Lease, asked: Asked) -> u64 {
        let world = &client.world;
        let token = lease.fence().get();
        client.note(format_args!("holds {name} with token {token}"));
        let mut breaches = Vec::new();
        let mut state = self.state.lock();
        for other in state.holds.iter().filter(|hold| hold.lock == name) {
            let excused = is_excused(world, self.durable, other.from.min(asked.from));
            if lease.is_valid() && other.is_valid() && !excused {
                breaches.push(format!(
                    "client {} was granted {name} while client {} holds it",
                    client.index, other.client
                ));
            }
        }
        // Only a server that lost the last token and whose clock is behind can issue it again.
        let excused = world.plan.clocks_differ && !world.losses().is_empty();
        if token <= asked.seen && !excused {
            breaches.push(format!(
                "the token {token} of {name} is not higher than {}, which was granted before",
                asked.seen
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
            from: asked.from,
            lease,
            process: client.process().clone(),
        });
        drop(state);
        breaches.into_iter().for_each(|breach| world.breach(breach));
        watch(world, (self.durable, self.ttl), &self.state, number);
        number
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

    async fn operate(&self, client: &mut Client, lock: &Redlock, name: &str) {
        let world = client.world.clone();
        let asked = self.ask(&world, name);
        // One round for the grant and one for the token.
        let attempt = 2 * self.timeout_of(client);
        let wait = client.dice.millis(0, 4000);
        let locked = match client.dice.below(3) {
            0 => {
                let call = lock.try_lock();
                client.call_within(100, "try_lock", attempt, call).await
            }
            1 => {
                let limit = client.longest(wait) + attempt;
                let call = lock.lock(wait);
                client.call_within(100, "lock", limit, call).await
            }
            _ => {
                self.run_with(client, lock, name, wait, asked).await;
                return self.over(&world, name);
            }
        };
        match locked {
            Some(Ok(Some(guard))) => self.hold(client, guard, name, asked).await,
            Some(Ok(None)) => self.refused(client, name, asked),
            _ => {}
        }
        self.over(&world, name);
    }

    /// Holds a lock for a while, and gives it back.
    async fn hold(&self, client: &mut Client, guard: Guard<FenceToken>, name: &str, asked: Asked) {
        let world = client.world.clone();
        let number = self.granted(client, name, guard.lease(), asked);
        // Some do not look whether they still hold it.
        let careless = client.dice.per_mille(300);
        let mut ended = false;
        for pause in pauses(client, self.ttl_of(client), 4) {
            tokio::time::sleep(pause).await;
            if client.dice.per_mille(200) {
                let call = guard.extend(self.ttl_of(client));
                let limit = self.timeout_of(client);
                let _ = client.call_within(100, "extend", limit, call).await;
            }
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
        match client.dice.below(3) {
            0 => drop(guard),
            _ => {
                let limit = world.plan.deadline;
                let call = guard.release();
                let _ = client.call_within(100, "release", limit, call).await;
            }
        }
    }

    async fn run_with(
        &self,
        client: &mut Client,
        lock: &Redlock,
        name: &str,
        wait: Duration,
        asked: Asked,
    ) {
        let holds = client.dice.millis(0, 2500);
        let number = Mutex::new(None);
        let run = lock.with(wait, |lease| {
            *number.lock() = Some(self.granted(client, name, lease, asked));
            tokio::time::sleep(holds)
        });
        let run = run.await;
        client.heard(&run, asked.from);
        if let Some(number) = number.into_inner() {
            self.given_back(number);
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

    /// Every lock can be had, with a higher token than before.
    async fn all_are_free(&self, client: &Client, stores: &[Store]) {
        let world = &client.world;
        for number in 0..self.names {
            let name = format!("lock{number}");
            let lock = self.lock(client, stores, &name);
            let seen = self.state.lock().highest.get(&name).copied().unwrap_or(0);
            match lock.lock(Duration::from_secs(3)).await {
                Ok(Some(guard)) => {
                    let excused = world.plan.clocks_differ && !world.losses().is_empty();
                    if guard.fence().get() <= seen && !excused {
                        world.breach(format!("the token of {name} fell back"));
                    }
                    drop(guard.release().await);
                }
                Ok(None) => world.breach(format!("{name} is held by nobody and not free")),
                Err(error) => world.breach(format!("{name} cannot be taken: {error}")),
            }
        }
    }

    /// Servers that hang stop nobody, and cost little: as long again as a quorum needs.
    async fn works_with_a_majority(&self, client: &mut Client, stores: &[Store]) {
        let world = client.world.clone();
        let lock = self.long(stores, "majority");
        // Everything is connected and every script is known then.
        for _ in 0..2 {
            if let Ok(Some(guard)) = lock.try_lock().await {
                drop(guard.release().await);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let first = client.dice.below(5) as usize;
        let hung = [first, (first + client.dice.between(1, 4) as usize) % 5];
        hung.iter().for_each(|server| world.servers[*server].hang());
        let limit = 8 * Duration::from_millis(world.plan.weather.delay.1 + 1);
        let locked = client.timed("try_lock", limit, lock.try_lock()).await;
        match locked {
            Ok(Some(guard)) => match guard.release().await {
                Ok(Released::Released) => {}
                other => world.breach(format!("with two servers down: {other:?}")),
            },
            other => world.breach(format!("two servers down stop a lock: {other:?}")),
        }
        hung.iter().for_each(|server| world.servers[*server].wake());
    }

    /// Those who ask at the same time get the lock one after the other: what a failed attempt got is given back.
    async fn contenders_all_come(&self, world: &World, stores: &[Store]) {
        let lock = self.long(stores, "contended");
        let contend = |_| async {
            match lock.lock(LONG / 2).await {
                Ok(Some(guard)) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    drop(guard.release().await);
                }
                other => world.breach(format!("one of several never gets a lock: {other:?}")),
            }
        };
        futures_util::future::join_all((0..3).map(contend)).await;
    }
}

impl Workload for Voting {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let stores = client.stores().await;
            tokio::time::sleep(UP_BEFORE.saturating_sub(client.world.now())).await;
            while client.next_operation() {
                client.rest(0, 1000).await;
                let name = format!("lock{}", client.dice.below(self.names));
                let lock = self.lock(&client, &stores, &name);
                self.operate(&mut client, &lock, &name).await;
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, _: &Store) -> Attempt {
        // Another one each time: a late copy of a request may take one that was tried before.
        let name = format!("works{}-{}", client.index, client.world.now().as_micros());
        let lock = self.long(&client.own_stores(), &name);
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
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

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            // Every lease has ended by then, and every server votes.
            let behind = match client.world.plan.clocks_differ {
                true => Duration::from_secs(4),
                false => Duration::ZERO,
            };
            tokio::time::sleep(self.ttl + behind + Duration::from_secs(3)).await;
            let stores = client.stores().await;
            self.all_are_free(&client, &stores).await;
            self.works_with_a_majority(&mut client, &stores).await;
            self.contenders_all_come(&client.world, &stores).await;
            for (key, ttl) in client.world.keys() {
                if !key.ends_with(":fence") && ttl < 0 {
                    client.world.breach(format!("{key} never expires"));
                }
            }
        })
    }

    fn killed(&self, client: usize) {
        let mut state = self.state.lock();
        state.holds.retain(|hold| hold.client != client);
    }
}
