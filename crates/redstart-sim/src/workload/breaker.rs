//! Circuit breakers: one circuit for all, never more probes than may be, a place for each as long as one is free, and it
//! closes again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    resilience::{Admission, Admitted, Breaker, CallWindow, CircuitState},
    sim::Process,
};

use super::{Attempt, Work, Workload};
use crate::{client::Client, dice::Dice, plan::FaultKind, world::World};

/// How old the view of an instance may get.
const REFRESH: Duration = Duration::from_secs(1);
const CALLS: u32 = 4;

pub(super) struct Breaking {
    probes: u32,
    /// How long a probe may take. A circuit is open for longer than that.
    lease: Duration,
    /// How long the dependency is well, and then ill.
    period: Duration,
    window: CallWindow,
    state: Mutex<State>,
    /// Breakers of clients that have done their work, with their stores.
    survivors: Mutex<Vec<(Arc<Process>, usize, Breaker)>>,
}

#[derive(Default)]
struct State {
    count: u64,
    /// Calls of probes that the store admitted and that are under way: who makes them, and when the place was given out.
    probes: BTreeMap<u64, (usize, Duration)>,
    /// When each client last dropped a request for a place. It may be granted later, to nobody.
    dropped: BTreeMap<usize, Duration>,
}

/// A request for a place that was dropped has come to its end after this time, also if a server hung.
const FORGOTTEN: Duration = Duration::from_secs(12);

impl Breaking {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[36]);
        Self {
            probes: dice.between(1, 2) as u32,
            lease: dice.millis(800, 2000),
            period: dice.millis(500, 4000),
            window: match dice.per_mille(500) {
                true => CallWindow::Count(8),
                false => CallWindow::Time(Duration::from_secs(10)),
            },
            state: Mutex::default(),
            survivors: Mutex::default(),
        }
    }

    fn open_for(&self) -> Duration {
        self.lease + Duration::from_millis(500)
    }

    async fn breaker(&self, client: &mut Client, store: &Store) -> Breaker {
        loop {
            let builder = Breaker::builder(store, "sim", "payments")
                .window(self.window)
                .failure_rate(0.5)
                .min_calls(CALLS)
                .probes(self.probes)
                .lease(self.lease)
                .open_for(self.open_for())
                .refresh(REFRESH)
                .instance(&format!("client{}", client.index));
            match builder.open().await {
                Ok(breaker) => return breaker,
                Err(_) => client.rest(50, 200).await,
            }
        }
    }

    /// A probe was admitted: are there too many? Its number, if the store admitted it.
    fn probe(&self, world: &World, client: usize, asked: Duration) -> Option<u64> {
        let now = world.now();
        // A server rounds to microseconds, a timer to milliseconds.
        let valid = |at: Duration| now + Duration::from_millis(2) < at + self.lease;
        let mut state = self.state.lock();
        let dropped = state.dropped.get(&client);
        if dropped.is_some_and(|at| now < *at + FORGOTTEN) {
            return None;
        }
        let Some(at) = world.seen.probes.claim(client, asked) else {
            drop(state);
            if valid(asked) && !may_be_alone(world) {
                let text = "a probe is sent that the store did not admit";
                world.breach(format!("{text}, by client {client}"));
            }
            return None;
        };
        // Its place is free when its lease ends. What was lost after the first of two places may be the reason for the second.
        let others = state.probes.values().filter(|(_, other)| {
            let from = at.min(*other);
            let excused = world.may_have_lost(from, now) || world.clock_jumped(from, now);
            valid(*other) && !excused
        });
        let count = others.count() + 1;
        let many = count > self.probes as usize && valid(at);
        state.count += 1;
        let number = state.count;
        state.probes.insert(number, (client, at));
        drop(state);
        if many {
            let most = self.probes;
            world.breach(format!(
                "{count} probes are under way, and {most} is the most"
            ));
        }
        Some(number)
    }

    /// What the servers did with the places of probes.
    fn judge_places(&self, world: &World) {
        for oddity in world.seen.probes.oddities() {
            let (from, at) = (oddity.from, oddity.at);
            if !world.may_have_lost(from, at) && !world.clock_jumped(from, at) {
                world.breach(format!("at {at:?}: {}", oddity.text));
            }
        }
    }

    async fn end(&self, client: &mut Client, admission: Admission, number: Option<u64>) {
        let world = client.world.clone();
        let well = (world.now().as_millis() / self.period.as_millis()).is_multiple_of(2);
        if let Some(number) = number {
            // Its place is free from now on, whatever becomes of the call.
            self.state.lock().probes.remove(&number);
        }
        if client.dice.per_mille(100) {
            return drop(admission);
        }
        match well {
            true => drop(client.call("succeeded", 1, admission.succeeded()).await),
            false => drop(client.call("failed", 1, admission.failed()).await),
        }
    }

    async fn operate(&self, client: &mut Client, breaker: &Breaker) {
        let world = client.world.clone();
        let asked = world.now();
        let admitted = client.call("try_admit", 1, breaker.try_admit()).await;
        let admission = match admitted {
            Some(Admitted::Yes(admission)) => admission,
            Some(_) => return world.met(),
            None => {
                self.state.lock().dropped.insert(client.index, asked);
                return;
            }
        };
        world.count(|tally| tally.succeeded += 1);
        let number = match admission.is_probe() {
            true => self.probe(&world, client.index, asked),
            false => None,
        };
        client.note(format_args!("calls, as a probe: {}", admission.is_probe()));
        client.rest(0, 400).await;
        self.end(client, admission, number).await;
    }

    /// All instances that lived through the faults must come to see the circuit in this state, while calls through this
    /// one go well. An instance may report late what it saw fail, and open the circuit once more.
    async fn all_see(&self, world: &World, state: CircuitState, breaker: &Breaker) {
        let within = REFRESH + world.plan.deadline * 4 + Duration::from_secs(4);
        let again = match state {
            CircuitState::Closed => self.open_for() + self.lease,
            _ => Duration::ZERO,
        };
        let by = world.now() + within + again;
        loop {
            if let Admitted::Yes(admission) = breaker.try_admit().await {
                admission.succeeded().await;
            }
            let other = {
                let survivors = self.survivors.lock();
                let mut alive = survivors.iter().filter(|(process, ..)| !process.is_gone());
                let other =
                    alive.find(|(process, _, breaker)| process.within(|| breaker.state()) != state);
                other.map(|(_, client, breaker)| (*client, breaker.state()))
            };
            let Some((client, seen)) = other else { return };
            if world.now() >= by {
                return world.breach(format!(
                    "client {client} sees the circuit {seen:?}, and it is {state:?}"
                ));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether instances may break alone, because the store is down for them: then each has probes of its own.
fn may_be_alone(world: &World) -> bool {
    let of_process = |kind: &FaultKind| {
        matches!(
            kind,
            FaultKind::Stop { .. }
                | FaultKind::Kill { .. }
                | FaultKind::ClockJump { .. }
                | FaultKind::Suspend { .. }
                | FaultKind::Evict { .. }
                | FaultKind::Forget { .. }
        )
    };
    let weather = &world.plan.weather;
    // Sentinels, a connection, its handshake and a script that the server does not have yet: more than a deadline.
    let far = Duration::from_millis(weather.delay.1) * 14 > world.plan.deadline;
    weather.slow.1 > 0
        || far
        || world
            .plan
            .faults
            .iter()
            .any(|fault| !of_process(&fault.kind) || matches!(fault.kind, FaultKind::Stop { .. }))
}

impl Workload for Breaking {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let breaker = self.breaker(&mut client, &store).await;
            while client.next_operation() {
                for _ in 0..4 {
                    client.rest(0, 250).await;
                    self.operate(&mut client, &breaker).await;
                }
            }
            let process = client.process().clone();
            let survivor = (process, client.index, breaker);
            self.survivors.lock().push(survivor);
        })
    }

    fn works(self: Arc<Self>, _: &Client, store: &Store) -> Attempt {
        let store = store.clone();
        Box::pin(async move {
            let time = store.time().await;
            time.map_err(|error| error.to_string()).map(drop)
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let breaker = self.breaker(&mut client, &store).await;
            // All is well: the probes close the circuit.
            let by = world.now() + self.open_for() + self.lease + Duration::from_secs(15);
            let mut calls = 0;
            while calls < 3 {
                match breaker.try_admit().await {
                    Admitted::Yes(admission) => {
                        calls += u32::from(!admission.is_probe());
                        admission.succeeded().await;
                    }
                    Admitted::No { .. } => {}
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                if world.now() >= by {
                    return world.breach(format!(
                        "the circuit stays {:?} although all is well",
                        breaker.state()
                    ));
                }
            }
            self.all_see(&world, CircuitState::Closed, &breaker).await;
            // It fails: the circuit opens for all.
            for _ in 0..10 {
                if breaker.state() != CircuitState::Closed {
                    break;
                }
                for _ in 0..2 * CALLS {
                    if let Admitted::Yes(admission) = breaker.try_admit().await {
                        admission.failed().await;
                    }
                }
                drop(breaker.flush().await);
            }
            if breaker.state() == CircuitState::Closed {
                return world.breach("the circuit does not open".to_owned());
            }
            if breaker.force_open(Duration::from_secs(60)).await.is_err() {
                return world.breach("the circuit cannot be opened by hand".to_owned());
            }
            self.all_see(&world, CircuitState::Open, &breaker).await;
            for (key, ttl) in world.keys() {
                if ttl < 0 {
                    world.breach(format!("{key} never expires"));
                }
            }
            self.judge_places(&world);
            let survivors = std::mem::take(&mut *self.survivors.lock());
            drop(survivors);
        })
    }

    fn killed(&self, client: usize) {
        // The places of its probes are taken until their leases end, and nobody makes the calls.
        let mut state = self.state.lock();
        state.probes.retain(|_, (of, _)| *of != client);
    }
}
