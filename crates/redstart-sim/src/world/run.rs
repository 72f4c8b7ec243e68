//! A world from its plan to its outcome.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{Arc, Once},
    time::Duration,
};

use redstart::sim;

use super::{Tally, World};
use crate::{mutation::Mutation, network::Dialler, plan::Plan, server::EPOCH, trace::Line};

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
