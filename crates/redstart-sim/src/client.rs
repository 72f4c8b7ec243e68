//! A client process, as a workload sees it.

use std::{
    fmt,
    future::Future,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use redstart::{Store, sim::Process};
use tokio::time::Instant;

use crate::{dice::Dice, network::Peer, world::World};

/// What a call ended with, for counting.
pub trait Answer {
    /// Whether it succeeded, if that can be told.
    fn is_fine(&self) -> Option<bool> {
        None
    }

    /// The error, if it is one.
    fn error(&self) -> Option<&dyn fmt::Display> {
        None
    }
}

impl<T, E: fmt::Display> Answer for Result<T, E> {
    fn is_fine(&self) -> Option<bool> {
        Some(self.is_ok())
    }

    fn error(&self) -> Option<&dyn fmt::Display> {
        let error = self.as_ref().err()?;
        Some(error)
    }
}

impl Answer for () {}

impl<T> Answer for Vec<T> {}

impl Answer for redstart::resilience::Admitted {}

/// One incarnation of a client.
pub struct Client {
    /// Where it lives.
    pub world: Arc<World>,
    /// Its number.
    pub index: usize,
    /// Its chance.
    pub dice: Dice,
    process: Arc<Process>,
}

impl Client {
    pub(crate) fn new(world: Arc<World>, index: usize, process: Arc<Process>, seed: u64) -> Self {
        Self {
            world,
            index,
            dice: Dice::new(seed),
            process,
        }
    }

    /// The same client, to measure a call that borrows it.
    pub fn twin(&self) -> Self {
        Self {
            world: self.world.clone(),
            index: self.index,
            dice: self.dice.clone(),
            process: self.process.clone(),
        }
    }

    /// Takes the next operation; false if none is left.
    pub fn next_operation(&self) -> bool {
        let left = &self.world.lives[self.index].left;
        let fewer = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        fewer.is_ok()
    }

    /// A store of this process.
    pub async fn store(&self) -> Store {
        let store = self.world.store().await;
        if let Some(life) = self.world.lives.get(self.index) {
            let mut stores = life.stores.lock();
            stores.push((self.process.clone(), store.clone()));
        }
        store
    }

    /// A store of this process for each of the separate servers.
    pub async fn stores(&self) -> Vec<Store> {
        let mut stores = Vec::new();
        for server in &self.world.servers {
            let url = format!("redis://{}:{}", server.host, server.port);
            stores.push(self.world.store_at(&url).await);
        }
        if let Some(life) = self.world.lives.get(self.index) {
            let own = stores.iter();
            let own = own.map(|store| (self.process.clone(), store.clone()));
            life.stores.lock().extend(own);
        }
        stores
    }

    /// The stores that this process has.
    pub fn own_stores(&self) -> Vec<Store> {
        let Some(life) = self.world.lives.get(self.index) else {
            return Vec::new();
        };
        let stores = life.stores.lock();
        let own = stores.iter();
        let own = own.filter(|(process, _)| Arc::ptr_eq(process, &self.process));
        own.map(|(_, store)| store.clone()).collect()
    }

    /// The process.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Whether it runs with the other settings of the world.
    pub fn has_other_settings(&self) -> bool {
        self.world.plan.settings_differ && self.index % 2 == 1
    }

    /// How long a wait may take that follows the clock of the process, which may be slow.
    pub fn longest(&self, wait: Duration) -> Duration {
        match self.world.plan.rates_differ {
            true => wait + wait / 100,
            false => wait,
        }
    }

    /// Records what the client did.
    pub fn note(&self, what: std::fmt::Arguments<'_>) {
        self.world.trace.note(Peer::Client(self.index), what);
    }

    /// Waits a while.
    pub async fn rest(&mut self, low: u64, high: u64) {
        tokio::time::sleep(self.dice.millis(low, high)).await;
    }

    fn stopped(&self) -> Duration {
        match self.world.lives.get(self.index) {
            Some(life) => {
                let stopped = life.stopped.lock();
                stopped.1 + stopped.0.map_or(Duration::ZERO, |since| since.elapsed())
            }
            None => Duration::ZERO,
        }
    }

    /// Carries out a call, which must end within `limit`, not counting the time that the process stood still.
    pub async fn timed<T>(&self, name: &str, limit: Duration, call: impl Future<Output = T>) -> T {
        let (begun, stopped) = (Instant::now(), self.stopped());
        let ended = call.await;
        let took = begun.elapsed().saturating_sub(self.stopped() - stopped);
        // A timer has a resolution of a millisecond, at both ends.
        if took > limit + Duration::from_millis(3) {
            let client = self.index;
            self.world.breach(format!(
                "{name} of client {client} took {took:?}, and had to end within {limit:?}"
            ));
        }
        ended
    }

    /// Carries out a call, or drops it at some await or after some time, by chance; `None` if it was dropped.
    pub async fn perhaps_dropped<T: Answer>(
        &mut self,
        share: u64,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        let asked = self.world.now();
        let ended = match self.dice.per_mille(share) {
            true => self.drop_within(call).await,
            false => Some(call.await),
        };
        self.world.count(|tally| match &ended {
            None => tally.dropped += 1,
            Some(answer) => tally.answered(answer.is_fine()),
        });
        if let Some(answer) = &ended {
            self.heard(answer, asked);
        }
        ended
    }

    /// A call of up to so many requests, each of which ends by its deadline. It may be dropped.
    pub async fn call<T: Answer>(
        &mut self,
        name: &str,
        requests: u32,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        let limit = self.world.plan.deadline * requests;
        self.call_within(100, name, limit, call).await
    }

    /// A call that must end within a limit, not counting the time that the process stood still. It may be dropped.
    pub async fn call_within<T: Answer>(
        &mut self,
        share: u64,
        name: &str,
        limit: Duration,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        let twin = self.twin();
        let call = twin.timed(name, limit, call);
        self.perhaps_dropped(share, call).await
    }

    /// The answer to a call that was made at a time: there must be a reason if it is an error.
    pub fn heard(&self, answer: &impl Answer, asked: Duration) {
        if let Some(error) = answer.error() {
            self.world.hear_error(error, self.index, asked);
        }
    }

    async fn drop_within<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        let mut call = std::pin::pin!(call);
        if self.dice.per_mille(500) {
            let within = self.dice.millis(0, 200);
            let ended = tokio::time::timeout(within, call).await.ok();
            if ended.is_none() {
                self.note(format_args!("dropped a call after {within:?}"));
            }
            return ended;
        }
        let mut awaits = self.dice.between(1, 5);
        let ended = std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if awaits == 1 => Poll::Ready(None),
            Poll::Pending => {
                awaits -= 1;
                Poll::Pending
            }
        })
        .await;
        if ended.is_none() {
            self.note(format_args!("dropped a call"));
        }
        ended
    }
}
