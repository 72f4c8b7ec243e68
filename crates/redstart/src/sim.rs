//! The plugs of a simulated world: its network, its chance and its processes. For this repository's own simulation;
//! never enable the feature `sim` in a program.
//!
//! A world lives on one thread. What it installs is seen by that thread only, so that tests on other threads are not
//! concerned.

#![allow(missing_docs)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use rand::{
    RngExt as _, SeedableRng as _,
    distr::uniform::{SampleRange, SampleUniform},
    rngs::SmallRng,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::Instant,
};

use crate::store::BoxFuture;

pub use crate::socket::Socket;

/// Makes connections.
pub trait Network: Send + Sync {
    /// Connects the process that runs now.
    fn dial(&self, host: String, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Socket>>>;
}

/// What holds in a world.
pub struct Setup {
    pub network: Arc<dyn Network>,
    /// For what happens outside all processes.
    pub seed: u64,
    /// The unix time in milliseconds.
    pub unix_millis: Box<dyn Fn() -> u64>,
    /// Scripts that are replaced, by name.
    pub scripts: Vec<(&'static str, &'static str)>,
    /// Mends that are taken out, by name.
    pub broken: Vec<&'static str>,
}

struct Installed {
    setup: Setup,
    rng: SmallRng,
    /// Name, source and digest.
    scripts: Vec<(&'static str, &'static str, &'static str)>,
}

thread_local! {
    static WORLD: RefCell<Option<Installed>> = const { RefCell::new(None) };
    static HERE: Cell<bool> = const { Cell::new(false) };
    static PROCESS: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
}

/// Makes this thread part of a world until the returned value is dropped.
#[must_use = "the world ends when this is dropped"]
pub fn install(setup: Setup) -> World {
    let scripts = setup.scripts.iter().map(|(name, source)| {
        let digest = sha1_smol::Sha1::from(source).digest().to_string();
        let digest: &'static str = digest.leak();
        (*name, *source, digest)
    });
    let installed = Installed {
        scripts: scripts.collect(),
        rng: SmallRng::seed_from_u64(setup.seed),
        setup,
    };
    WORLD.with_borrow_mut(|world| *world = Some(installed));
    HERE.set(true);
    World(())
}

/// A world that is installed on this thread.
pub struct World(());

impl Drop for World {
    fn drop(&mut self) {
        HERE.set(false);
        let installed = WORLD.with_borrow_mut(Option::take);
        drop(installed);
    }
}

pub(crate) fn is_here() -> bool {
    HERE.get()
}

pub(crate) fn network() -> Option<Arc<dyn Network>> {
    if !is_here() {
        return None;
    }
    WORLD.with_borrow(|world| Some(world.as_ref()?.setup.network.clone()))
}

#[cfg(feature = "messaging")]
pub(crate) fn unix_millis() -> Option<u64> {
    WORLD.with_borrow(|world| Some((world.as_ref()?.setup.unix_millis)()))
}

/// Whether a mend is taken out in this world.
pub(crate) fn is_broken(mend: &str) -> bool {
    is_here()
        && WORLD.with_borrow(|world| {
            let world = world.as_ref();
            world.is_some_and(|world| world.setup.broken.contains(&mend))
        })
}

/// The source and the digest of a script that is replaced in this world.
pub(crate) fn replaced(name: &str) -> Option<(&'static str, &'static str)> {
    if !is_here() {
        return None;
    }
    WORLD.with_borrow(|world| {
        let mut scripts = world.as_ref()?.scripts.iter();
        let (_, source, digest) = scripts.find(|(replaced, ..)| *replaced == name)?;
        Some((*source, *digest))
    })
}

/// A value by the world's chance; `None` outside a world.
pub(crate) fn draw<T>(draw: impl FnOnce(&mut SmallRng) -> T) -> Option<T> {
    if !is_here() {
        return None;
    }
    if let Some(process) = current() {
        return Some(draw(&mut process.rng.lock()));
    }
    WORLD.with_borrow_mut(|world| Some(draw(&mut world.as_mut()?.rng)))
}

/// As [`draw`], of a range. Only in a world.
pub(crate) fn draw_range<T, R>(range: R) -> T
where
    T: SampleUniform,
    R: SampleRange<T>,
{
    let mut range = Some(range);
    let drawn = draw(|rng| range.take().map(|range| rng.random_range(range)));
    match (drawn.flatten(), range) {
        (Some(value), _) => value,
        (None, Some(range)) => rand::random_range(range),
        (None, None) => unreachable!("a range is used once"),
    }
}

/// A simulated process: its tasks run, stand still, or are gone.
pub struct Process {
    id: usize,
    state: Mutex<State>,
    rng: Mutex<SmallRng>,
    turns: Mutex<Turns>,
    /// Its monotonic clock, unless that is the world's.
    clock: Mutex<Option<OwnClock>>,
    clock_changed: Notify,
    /// The background tasks that have not ended, by the name of their work.
    tasks: Mutex<BTreeMap<&'static str, usize>>,
}

/// A monotonic clock that runs at its own rate.
#[derive(Clone, Copy)]
struct OwnClock {
    /// It showed `shown` when the world's clock showed `since`.
    since: Instant,
    shown: Instant,
    /// How many microseconds it counts in a second.
    rate: u64,
    /// It stands still.
    stands: bool,
}

impl OwnClock {
    fn now(&self) -> Instant {
        if self.stands {
            return self.shown;
        }
        let passed = self.since.elapsed().as_nanos() * u128::from(self.rate) / 1_000_000;
        self.shown + Duration::from_nanos(passed as u64)
    }
}

/// Which tasks wait for the others although they are ready.
struct Turns {
    /// How many of a thousand polls are put off.
    share: u32,
    rng: SmallRng,
}

enum State {
    Runs,
    /// Those that would have run meanwhile.
    Stands(Vec<Waker>),
    Gone,
}

impl Process {
    pub fn new(id: usize, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::new(State::Runs),
            rng: Mutex::new(SmallRng::seed_from_u64(seed)),
            turns: Mutex::new(Turns {
                share: 0,
                rng: SmallRng::seed_from_u64(!seed),
            }),
            clock: Mutex::default(),
            clock_changed: Notify::new(),
            tasks: Mutex::default(),
        })
    }

    /// What its monotonic clock shows.
    pub fn now(&self) -> Instant {
        let clock = *self.clock.lock();
        clock.map_or_else(Instant::now, |clock| clock.now())
    }

    /// From now on its clock counts so many microseconds in a second of the world.
    pub fn set_clock_rate(&self, rate: u64) {
        self.change_clock(|clock| clock.rate = rate);
    }

    /// Its clock is ahead by this much from now on.
    pub fn clock_jumps(&self, ahead: Duration) {
        self.change_clock(|clock| clock.shown += ahead);
    }

    /// Its clock stands still, as that of a machine that is suspended, or goes on from where it stood.
    pub fn clock_stands(&self, stands: bool) {
        self.change_clock(|clock| clock.stands = stands);
    }

    fn change_clock(&self, change: impl FnOnce(&mut OwnClock)) {
        let now = Instant::now();
        let mut guard = self.clock.lock();
        let mut clock = guard.unwrap_or(OwnClock {
            since: now,
            shown: now,
            rate: 1_000_000,
            stands: false,
        });
        (clock.shown, clock.since) = (clock.now(), now);
        change(&mut clock);
        *guard = Some(clock);
        drop(guard);
        self.clock_changed.notify_waiters();
    }

    /// Waits until its clock shows `at`.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        loop {
            let changed = self.clock_changed.notified();
            let left = at.saturating_duration_since(self.now());
            if left.is_zero() {
                return;
            }
            let rate = match *self.clock.lock() {
                Some(clock) if clock.stands => 0,
                clock => clock.map_or(1_000_000, |clock| clock.rate),
            };
            let wait = async {
                match rate {
                    0 => std::future::pending().await,
                    rate => {
                        let nanos = left.as_nanos() * 1_000_000 / u128::from(rate);
                        tokio::time::sleep(Duration::from_nanos(nanos as u64)).await;
                    }
                }
            };
            tokio::select! {
                biased;
                () = wait => {}
                () = changed => {}
            }
        }
    }

    /// What something finds that looks as a part of this process, on its clock.
    pub fn within<T>(self: &Arc<Self>, look: impl FnOnce() -> T) -> T {
        let restore = Restore(PROCESS.replace(Some(self.clone())));
        let found = look();
        drop(restore);
        found
    }

    /// From now on, so many of a thousand polls happen after those of the other tasks that are ready.
    pub fn put_off(&self, share: u32) {
        self.turns.lock().share = share;
    }

    fn is_put_off(&self) -> bool {
        let mut turns = self.turns.lock();
        turns.share > 0 && turns.rng.random_range(0..1000) < turns.share
    }

    pub fn id(&self) -> usize {
        self.id
    }

    /// Stops it, as SIGSTOP does.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Runs) {
            *state = State::Stands(Vec::new());
        }
    }

    /// Lets it run on.
    pub fn go_on(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Gone) {
            return;
        }
        let stood = std::mem::replace(&mut *state, State::Runs);
        drop(state);
        if let State::Stands(wakers) = stood {
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Ends it, as SIGKILL does: none of its tasks runs again, nothing is dropped.
    pub fn kill(&self) {
        *self.state.lock() = State::Gone;
    }

    pub fn is_gone(&self) -> bool {
        matches!(*self.state.lock(), State::Gone)
    }

    pub fn is_running(&self) -> bool {
        matches!(*self.state.lock(), State::Runs)
    }

    /// The background tasks of the library that have not ended, by the name of their work, and how many there are of each.
    pub fn tasks(&self) -> Vec<(&'static str, usize)> {
        let tasks = self.tasks.lock();
        tasks.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// Work of this process.
    pub fn own<F: Future>(self: &Arc<Self>, work: F) -> Owned<F> {
        Owned {
            process: Some(self.clone()),
            counted: None,
            work,
        }
    }
}

/// The process that runs now, if it has a clock of its own.
pub(crate) fn with_own_clock() -> Option<Arc<Process>> {
    if !is_here() {
        return None;
    }
    current().filter(|process| process.clock.lock().is_some())
}

/// The process whose task runs now.
pub fn current() -> Option<Arc<Process>> {
    PROCESS.with_borrow(Clone::clone)
}

pin_project! {
    /// Work that belongs to a process.
    pub struct Owned<F> {
        process: Option<Arc<Process>>,
        counted: Option<Counted>,
        #[pin]
        work: F,
    }
}

/// A background task that has not ended.
struct Counted(Arc<Process>, &'static str);

impl Counted {
    fn new(process: &Arc<Process>, name: &'static str) -> Self {
        *process.tasks.lock().entry(name).or_default() += 1;
        Self(process.clone(), name)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut tasks = self.0.tasks.lock();
        if let Some(count) = tasks.get_mut(self.1) {
            *count -= 1;
            if *count == 0 {
                tasks.remove(self.1);
            }
        }
    }
}

impl<F: Future> Owned<F> {
    /// Work of the process that runs now.
    pub(crate) fn new(work: F) -> Self {
        let process = is_here().then(current).flatten();
        Self {
            counted: process
                .as_ref()
                .map(|process| Counted::new(process, std::any::type_name::<F>())),
            process,
            work,
        }
    }
}

impl<F: Future> Future for Owned<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(process) = this.process else {
            return this.work.poll(cx);
        };
        match &mut *process.state.lock() {
            State::Runs => {}
            State::Stands(wakers) => {
                wakers.push(cx.waker().clone());
                return Poll::Pending;
            }
            State::Gone => return Poll::Pending,
        }
        if process.is_put_off() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = PROCESS.replace(Some(process.clone()));
        let restore = Restore(before);
        let polled = this.work.poll(cx);
        drop(restore);
        polled
    }
}

/// The process that ran before, also if the work panics.
struct Restore(Option<Arc<Process>>);

impl Drop for Restore {
    fn drop(&mut self) {
        let before = self.0.take();
        PROCESS.set(before);
    }
}

/// A socket for those who read and write by tokio's traits.
pub struct SocketStream(pub Box<dyn Socket>);

impl AsyncRead for SocketStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.0.try_read(room.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    room.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
            match self.0.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            }
        }
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
            match self.0.poll_write_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
