//! Which jobs run, and why one may not begin.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use redstart::{
    messaging::{JobContext, JobId},
    sim::{Process, current},
};

use super::{BACKOFF, RUNNING};
use crate::world::{SUSPENDED, World};

#[derive(Default)]
pub(super) struct State {
    /// Jobs that were surely taken, and when.
    pub(super) taken: BTreeMap<u64, Duration>,
    /// Runs that ended well.
    pub(super) done: BTreeMap<u64, u32>,
    /// Who did a job: a worker that must have said so, unless something kept it from that.
    pub(super) done_by: BTreeMap<u64, Doer>,
    /// Jobs whose end may not have been heard: they may run again.
    pub(super) unsettled: BTreeSet<u64>,
    pub(super) failed: BTreeMap<u64, u16>,
    /// Who ran a job that failed, until it is known that the store has heard of it, or the job begins again.
    pub(super) failed_by: BTreeMap<u64, u64>,
    /// Failed attempts that are perhaps not charged: the worker left before the store had heard of them.
    pub(super) uncharged: BTreeMap<u64, u16>,
    /// Workers that were shut down or dropped, and dispatchers: a take that is dropped hands back all that it holds.
    pub(super) left: BTreeSet<u64>,
    /// Jobs that were surely settled as done, and when that was sent.
    pub(super) settled: BTreeMap<u64, Duration>,
    /// When a failed attempt was surely written down, at the earliest: the job rests from then on.
    pub(super) rests: BTreeMap<u64, Duration>,
    /// When a job was sent.
    pub(super) sent: BTreeMap<u64, Duration>,
    /// When a job was sent, and the earliest time at which it may run.
    pub(super) due: BTreeMap<u64, (Duration, Duration)>,
    pub(super) running: Vec<Run>,
    pub(super) runs: u64,
    pub(super) workers: u64,
}

/// A worker that did a job.
pub(super) struct Doer {
    pub(super) worker: u64,
    pub(super) process: Arc<Process>,
    pub(super) began: Duration,
    pub(super) lease: Duration,
}

/// A handler that runs.
pub(super) struct Run {
    run: u64,
    job: u64,
    since: Duration,
    process: Option<Arc<Process>>,
    pub(super) holder: Holder,
    /// The registration that has the job, as the servers said when it began.
    pub(super) registration: Option<String>,
}

/// How whoever runs a job knows that it holds it.
pub(super) enum Holder {
    /// A handler of a worker, by the worker's number.
    Handler(u64, JobContext),
    /// A worker outside, until the end of its lease.
    Outside(Duration),
}

impl Holder {
    /// Whether it can know that it lost the job.
    pub(super) fn is_told(&self, now: Duration) -> bool {
        match self {
            Self::Handler(_, context) => context.lost().now_or_never().is_some(),
            Self::Outside(until) => now + Duration::from_millis(2) >= *until,
        }
    }
}

/// Takes a run off the list, also if the worker drops it half-way. A process that is killed drops nothing.
pub(super) struct Running {
    state: Arc<Mutex<State>>,
    run: u64,
    world: Weak<World>,
    lease: Duration,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let ended = state.running.iter().position(|run| run.run == self.run);
        let Some(ended) = ended.map(|at| state.running.swap_remove(at)) else {
            return;
        };
        let left =
            matches!(ended.holder, Holder::Handler(worker, _) if state.left.contains(&worker));
        drop(state);
        let Some(world) = self.world.upgrade() else {
            return;
        };
        if left
            || !matches!(ended.holder, Holder::Handler(..))
            || !ended.holder.is_told(world.now())
        {
            return;
        }
        let client = ended.process.as_ref().map(|process| process.id());
        let kept = client.is_some_and(|client| keeps(&world, client, ended.since, self.lease));
        if kept {
            world.breach(format!(
                "the handler of job {} was told of a loss although nothing kept its worker from renewing its lease",
                ended.job
            ));
        }
    }
}

/// Whether a worker that held its lease when a job began must have it still.
fn keeps(world: &World, client: usize, began: Duration, lease: Duration) -> bool {
    world.must_keep_lease(client, began.saturating_sub(lease), lease)
}

/// The lease of the worker, and the longest of any; and how many attempts a job has.
#[derive(Clone, Copy)]
pub(super) struct Leases {
    pub(super) own: Duration,
    pub(super) longest: Duration,
    pub(super) attempts: u16,
}

/// Why a job may not begin now. An older copy of the data may be the reason that it does.
fn objections(world: &World, state: &State, job: u64, leases: Leases) -> Vec<String> {
    let now = world.now();
    // Its worker was given it at most a lease ago. If that was lost, another one was given it too.
    let given_lost = world.may_have_lost(now.saturating_sub(leases.longest), now);
    let mut breaches = Vec::new();
    if let Some(sent) = state.settled.get(&job)
        && !world.may_have_lost(*sent, now)
        && !given_lost
    {
        breaches.push(format!(
            "job {job} begins again after it was settled as done"
        ));
    }
    if let Some(failed) = state.rests.get(&job)
        && now + Duration::from_millis(2) < *failed + BACKOFF
        && !world.may_have_lost(*failed, now)
        && !world.clock_jumped(*failed, now)
    {
        breaches.push(format!(
            "job {job} begins again too soon after it failed at {failed:?}"
        ));
    }
    if let Some(doer) = state.done_by.get(&job)
        && !doer.process.is_gone()
        && !state.left.contains(&doer.worker)
        && keeps(world, doer.process.id(), doer.began, doer.lease)
    {
        breaches.push(format!(
            "job {job} begins again although its worker had done it and could say so"
        ));
    }
    let sent = state.sent.get(&job).copied().unwrap_or_default();
    let uncharged = state.uncharged.get(&job).copied().unwrap_or_default();
    if let Some(failed) = state.failed.get(&job)
        && failed.saturating_sub(uncharged) >= leases.attempts
        && !world.may_have_lost(sent, now)
    {
        breaches.push(format!(
            "job {job} begins after its {} attempts have failed",
            leases.attempts
        ));
    }
    breaches
}

/// Whether the machine of this process was suspended since then.
fn was_suspended(world: &World, process: Option<&Process>, since: Duration) -> bool {
    process.is_some_and(|process| world.is_suspended_since(process.id(), since))
}

/// A worker that stood still for longer than its lease must hear from the store before it begins anything.
fn stood_still(
    world: &World,
    process: Option<&Process>,
    leases: Leases,
    job: u64,
) -> Option<String> {
    let life = process.and_then(|process| world.lives.get(process.id()));
    let (at, lasted) = life.and_then(|life| *life.woke.lock())?;
    let early = at == world.now() && lasted >= leases.own && world.plan.weather.delay.0 > 0;
    early.then(|| {
        format!(
            "job {job} begins although its worker stood still for {lasted:?} and its lease has ended"
        )
    })
}

/// Others that run the job and do not know that they lost it.
fn runs_already(world: &World, state: &State, job: u64, leases: Leases) -> Vec<String> {
    let now = world.now();
    let mut breaches = Vec::new();
    for other in state.running.iter().filter(|run| run.job == job) {
        // One that stands still or is dead cannot know that it lost the job.
        let runs = other
            .process
            .as_ref()
            .is_none_or(|process| process.is_running());
        let lost = other.holder.is_told(now);
        // The job was handed out before the handler began, at most a lease.
        let since = other.since.saturating_sub(leases.longest);
        let excused = world.may_have_lost(since, now)
            || world.clock_jumped(since, now)
            || was_suspended(world, other.process.as_deref(), since);
        if runs && !lost && !excused {
            breaches.push(format!(
                "job {job} begins while a worker runs it that was not told of a loss"
            ));
        }
    }
    breaches
}

/// A handler begins.
pub(super) fn begin(
    world: &Arc<World>,
    state: &Arc<Mutex<State>>,
    leases: Leases,
    job: u64,
    holder: Holder,
) -> Running {
    world.met();
    let now = world.now();
    let process = current();
    // One outside that stood still since it was given the job cannot know better, nor a worker whose clock stood still.
    let given = now.saturating_sub(leases.longest + SUSPENDED);
    let late = match holder {
        Holder::Outside(_) => holder.is_told(now),
        Holder::Handler(..) => was_suspended(world, process.as_deref(), given),
    };
    let registration = match &holder {
        Holder::Handler(_, context) => {
            let mut held = held(world).into_iter();
            let has = held.find(|(_, jobs)| jobs.contains(&context.id()));
            has.map(|(name, _)| name)
        }
        Holder::Outside(_) => None,
    };
    let mut breaches = Vec::new();
    if matches!(holder, Holder::Handler(..)) && !late {
        breaches.extend(stood_still(world, process.as_deref(), leases, job));
    }
    let mut guard = state.lock();
    if !late {
        breaches.extend(runs_already(world, &guard, job, leases));
    }
    if let Some((sent, due)) = guard.due.get(&job)
        && now < *due
        && !world.clock_jumped(*sent, now)
    {
        breaches.push(format!("job {job} begins before it is due at {due:?}"));
    }
    if let Some(worker) = guard.failed_by.remove(&job)
        && guard.left.contains(&worker)
        && !is_calm(world, leases.own)
    {
        *guard.uncharged.entry(job).or_default() += 1;
    }
    if !late {
        breaches.extend(objections(world, &guard, job, leases));
    }
    guard.runs += 1;
    let run = guard.runs;
    guard.running.push(Run {
        run,
        job,
        since: now,
        process: current(),
        holder,
        registration,
    });
    drop(guard);
    breaches.into_iter().for_each(|breach| world.breach(breach));
    Running {
        state: state.clone(),
        run,
        world: Arc::downgrade(world),
        lease: leases.own,
    }
}

/// Whether nothing goes wrong, and the lines are fast enough to renew a lease in time, also with scripts that the server does
/// not have yet.
pub(super) fn is_calm(world: &World, lease: Duration) -> bool {
    let weather = &world.plan.weather;
    let far = Duration::from_millis(weather.delay.1) * 14 > lease;
    world.plan.faults.is_empty() && weather.slow.0 == 0 && !far
}

/// What each registration of a worker holds, as the servers have it.
pub(super) fn held(world: &World) -> BTreeMap<String, Vec<JobId>> {
    let mut held: BTreeMap<String, Vec<JobId>> = BTreeMap::new();
    for (key, fields) in world.hashes(RUNNING) {
        // One field is the registration's own; the others begin with the id of a job.
        let ids = fields.iter().filter_map(|field| {
            let hex = |byte: &u8| format!("{byte:02x}");
            let text: String = field.get(..16)?.iter().map(hex).collect();
            text.parse::<JobId>().ok()
        });
        let name = key.trim_start_matches(RUNNING).to_owned();
        held.entry(name).or_default().extend(ids);
    }
    held
}
