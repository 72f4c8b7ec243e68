//! A miss of one key: lease, load, store.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout};

use super::{
    Count, Hit, Inner, Stampede,
    entry::Stamp,
    fill::{Work, may_bypass, store_is_down},
    lease::{self, Grant, WakeListener},
    load::{Loader, batch_of_one},
    read::{Freshness, Raw, Seen},
    single_flight::{Progress, SingleFlight, Waiter},
};
use crate::{
    codec::Codec,
    error::{Error, Result},
    key::Entity,
    token::token,
};

/// Why a load starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// There is nothing to serve. `seen` is the stamp of an entry that cannot be used.
    Miss { seen: Option<Stamp> },
    /// There is a value to serve if the load fails.
    Replace { seen: Stamp },
    /// There is a value, and the callers have it already.
    Refresh { seen: Stamp },
    /// The store is down: load without it.
    Bypass,
}

impl Purpose {
    fn seen(self) -> Option<Stamp> {
        match self {
            Self::Miss { seen } => seen,
            Self::Replace { seen } | Self::Refresh { seen } => Some(seen),
            Self::Bypass => None,
        }
    }

    /// Where there is a value to serve, a failing source is left alone for a moment.
    pub(super) fn rest(self) -> Duration {
        match self {
            Self::Replace { .. } | Self::Refresh { .. } => lease::REST,
            Self::Miss { .. } | Self::Bypass => Duration::ZERO,
        }
    }
}

/// The result of a load, for all callers that joined it.
#[derive(Debug)]
pub(super) enum LoadResult<V> {
    /// A value that was good at some moment after `step` began.
    Value {
        hit: Hit<V>,
        step: u64,
    },
    /// Another process refreshes it, or a load failed recently.
    NotNeeded,
    Failed(Arc<Error>),
}

impl<V> Clone for LoadResult<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Value { hit, step } => Self::Value {
                hit: hit.clone(),
                step: *step,
            },
            Self::NotNeeded => Self::NotNeeded,
            Self::Failed(error) => Self::Failed(error.clone()),
        }
    }
}

impl<V> LoadResult<V> {
    /// The answer for this caller, if the load has one for it.
    ///
    /// A value is good for callers that joined before it was read or stored: for them an invalidation that followed
    /// was concurrent. A caller that joined later saw that the store does not have it, perhaps because it was
    /// invalidated already, and must ask again.
    pub(super) fn hit(self, waiter: &Waiter<Self>) -> Option<Hit<V>> {
        match self {
            Self::Value { hit, step } if waiter.joined_before(step) => Some(hit),
            _ => None,
        }
    }

    fn failed(error: Error) -> Self {
        Self::Failed(Arc::new(error))
    }
}

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Reads a key from the store, and loads it if need be.
    pub(super) async fn fetch(self: &Arc<Self>, name: &str, loader: Loader<V>) -> Result<Hit<V>> {
        let entity = self.keys.entity(name)?;
        let name: Arc<str> = name.into();
        let mut loader = Some(loader);
        loop {
            let mark = self.mark(&name, &entity);
            let (purpose, fallback) = match self.read(&entity).await {
                Ok(Seen::Found(found)) => {
                    self.remember(&name, mark.as_ref(), &found);
                    let seen = found.stamp;
                    match found.freshness {
                        Freshness::Fresh => {
                            self.count_hits([&found.hit]);
                            if self.draws_early(&found) {
                                self.stats.add(Count::Early);
                                let refresh = Purpose::Refresh { seen };
                                drop(self.join(&name, &entity, &mut loader, refresh)?);
                            }
                            return Ok(found.hit);
                        }
                        Freshness::Stale => (Purpose::Refresh { seen }, Some(found.hit)),
                        Freshness::Fallback => (Purpose::Replace { seen }, Some(found.hit)),
                    }
                }
                Ok(Seen::Unusable { stamp }) => (Purpose::Miss { seen: Some(stamp) }, None),
                Ok(Seen::Nothing) => (Purpose::Miss { seen: None }, None),
                Err(error) => match self.last_seen(&name, &error) {
                    Some(hit) => return Ok(hit),
                    None if may_bypass(&error, self.settings.down) => (Purpose::Bypass, None),
                    None => return Err(error),
                },
            };
            if !matches!(purpose, Purpose::Refresh { .. }) {
                self.stats.add(Count::Miss);
            }
            let mut waiter = self.join(&name, &entity, &mut loader, purpose)?;
            let result = match (self.patience(purpose), &fallback) {
                (Some(Duration::ZERO), _) => None,
                (Some(patience), Some(_)) => timeout(patience, waiter.result()).await.ok(),
                _ => Some(waiter.result().await),
            };
            let failed = match result {
                // The soft limit is over.
                None => Error::timeout("the loader took longer than its soft limit"),
                Some(None) => Error::unavailable("the load was abandoned"),
                Some(Some(LoadResult::Failed(error))) => Error::shared(&error),
                Some(Some(result)) => match result.hit(&waiter) {
                    Some(hit) => return Ok(hit),
                    // It was read before this caller came, and was invalidated meanwhile.
                    None if loader.is_some() && fallback.is_none() => continue,
                    None => Error::unavailable("the load returned nothing"),
                },
            };
            if let Some(hit) = fallback {
                self.count_hits([&hit]);
                return Ok(hit);
            }
            return self.last_seen(&name, &failed).ok_or(failed);
        }
    }

    /// How long a caller with a stale value waits for a load; `None` is until its end.
    fn patience(&self, purpose: Purpose) -> Option<Duration> {
        match purpose {
            Purpose::Refresh { .. } => Some(self.settings.soft),
            _ => Some(self.settings.soft).filter(|soft| !soft.is_zero()),
        }
    }

    /// Starts a load with this caller's loader, or joins the one that runs.
    pub(super) fn join(
        self: &Arc<Self>,
        name: &Arc<str>,
        entity: &Entity,
        loader: &mut Option<Loader<V>>,
        purpose: Purpose,
    ) -> Result<Waiter<LoadResult<V>>> {
        let runtime = self
            .store
            .runtime()
            .ok_or_else(|| Error::config("a load into a cache needs a tokio runtime"))?;
        let start = |runner: super::single_flight::Runner<LoadResult<V>>| {
            if let Some(loader) = loader.take() {
                let (inner, name, entity) = (self.clone(), name.clone(), entity.clone());
                crate::task::spawn_on(&runtime, async move {
                    let result = inner
                        .miss(&name, &entity, loader, purpose, &runner.progress)
                        .await;
                    runner.finish(result);
                });
            }
        };
        Ok(match self.settings.stampede {
            Stampede::Off => SingleFlight::alone(start),
            Stampede::Lease | Stampede::Local => self.flights.join(name, start),
        })
    }

    pub(super) fn refresh_early(
        self: &Arc<Self>,
        name: &str,
        seen: Stamp,
        loader: Loader<V>,
    ) -> Result<()> {
        let entity = self.keys.entity(name)?;
        self.stats.add(Count::Early);
        let purpose = Purpose::Refresh { seen };
        self.join(&name.into(), &entity, &mut Some(loader), purpose)
            .map(drop)
    }

    /// A lease outlasts the load and the requests after it, and no more.
    pub(super) fn lease_lasts(&self) -> Duration {
        self.settings.hard + 2 * self.store.deadline()
    }

    /// Asks for the lease until there is one, or an answer; then loads.
    ///
    /// One loop, because each answer decides what the next question needs.
    async fn miss(
        &self,
        name: &Arc<str>,
        entity: &Entity,
        loader: Loader<V>,
        purpose: Purpose,
        progress: &Progress,
    ) -> LoadResult<V> {
        if purpose == Purpose::Bypass {
            return self.bypass(name, entity, loader, progress).await;
        }
        let may_be_left_out = matches!(purpose, Purpose::Refresh { .. });
        let mut seen = purpose.seen();
        let shared = self.settings.stampede != Stampede::Lease;
        let lasts = self.lease_lasts();
        let patience = Instant::now() + 2 * lasts;
        let token = token();
        let mut listener: Option<WakeListener> = None;
        loop {
            let step = progress.step();
            let mark = self.mark(name, entity);
            let ask = self.ask(entity, &token, lasts, shared, seen);
            let ask = ask.run::<Grant>(&self.store);
            // The tags' state is needed from before the load; asked for together, it takes no time. After a wait it
            // is read again, because tags invalidated meanwhile would make the value a miss.
            let (asked, snapshot) = match listener {
                None => {
                    let (asked, tags) = tokio::join!(ask, self.tags.snapshot(&self.store));
                    (asked, Some(tags))
                }
                Some(_) => (ask.await, None),
            };
            let grant = match self.watched(entity, asked) {
                Ok(grant) => grant,
                Err(error) if may_bypass(&error, self.settings.down) && !may_be_left_out => {
                    return self.bypass(name, entity, loader, progress).await;
                }
                Err(error) => return LoadResult::failed(error),
            };
            let token = match grant {
                Grant::Value { bytes, left } => {
                    let bytes = Some(bytes);
                    match self.examine(entity, Raw { bytes, left }).await {
                        Ok(Seen::Found(found)) if found.freshness == Freshness::Fresh => {
                            self.remember(name, mark.as_ref(), &found);
                            let hit = found.hit;
                            return LoadResult::Value { hit, step };
                        }
                        Ok(Seen::Found(found)) => seen = Some(found.stamp),
                        Ok(Seen::Unusable { stamp }) => seen = Some(stamp),
                        Ok(Seen::Nothing) => seen = None,
                        Err(error) => return LoadResult::failed(error),
                    }
                    continue;
                }
                Grant::Wait(_) | Grant::Fenced if may_be_left_out => return LoadResult::NotNeeded,
                Grant::Rest(_) if !purpose.rest().is_zero() => return LoadResult::NotNeeded,
                Grant::Wait(left) | Grant::Rest(left) => {
                    if Instant::now() >= patience {
                        return LoadResult::failed(Error::timeout(
                            "another process did not finish its load in time",
                        ));
                    }
                    // A moment longer than the lease, so that it is over when we ask again.
                    let until = (Instant::now() + left + Duration::from_millis(1)).min(patience);
                    match &mut listener {
                        None => {
                            self.stats.add(Count::Wait);
                            listener = Some(self.listen(entity, until).await);
                        }
                        Some(listener) => listener.wait(until).await,
                    }
                    continue;
                }
                Grant::Fenced => {
                    self.stats.add(Count::Bypass);
                    None
                }
                Grant::Lease { token } => Some(token),
            };
            let work = Work {
                name: name.clone(),
                entity: entity.clone(),
                mark,
                token,
            };
            return self
                .load_one(work, loader, snapshot, purpose.rest(), progress)
                .await;
        }
    }

    async fn load_one(
        &self,
        work: Work,
        loader: Loader<V>,
        snapshot: Option<Result<crate::caching::tags::Snapshot>>,
        rest: Duration,
        progress: &Progress,
    ) -> LoadResult<V> {
        let loader = batch_of_one(loader);
        match self
            .load(vec![work], loader, snapshot, rest, progress)
            .await
        {
            Ok(mut loaded) => match loaded.pop() {
                Some(fresh) => LoadResult::Value {
                    hit: fresh.hit,
                    step: fresh.step,
                },
                None => LoadResult::failed(Error::unavailable("the load returned nothing")),
            },
            Err(error) => LoadResult::failed(error),
        }
    }

    /// Loads without the store, while that is down, and not too many at once.
    async fn bypass(
        &self,
        name: &Arc<str>,
        entity: &Entity,
        loader: Loader<V>,
        progress: &Progress,
    ) -> LoadResult<V> {
        let Some(_permit) = self.bypass_permit().await else {
            return LoadResult::failed(store_is_down());
        };
        let work = Work {
            name: name.clone(),
            entity: entity.clone(),
            mark: None,
            token: None,
        };
        self.load_one(work, loader, None, Duration::ZERO, progress)
            .await
    }

    /// Waits for one of the places for loads while the store is down.
    pub(super) async fn bypass_permit(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let permit = timeout(self.settings.hard, self.bypass_loads.acquire()).await;
        self.stats.add(Count::Bypass);
        permit.ok().and_then(std::result::Result::ok)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::HitSource, *};

    /// Between a fill on the server and its reply an invalidation may be over, in another process. A caller that
    /// comes then found nothing in the store and joins the load that is about to end.
    #[tokio::test]
    async fn a_caller_that_joins_while_the_value_is_stored_does_not_get_it() {
        let flights = SingleFlight::<LoadResult<u32>>::new();
        let name: Arc<str> = "k".into();
        let mut runner = None;
        let mut join = || flights.join(&name, |started| runner = Some(started));
        let first = join();
        let before_the_load = join();
        let progress = runner.as_ref().expect("it started").progress.clone();
        let loading = progress.step();
        let join = || flights.join(&name, |_| panic!("it runs already"));
        let while_it_loads = join();
        let storing = progress.step();
        let while_it_stores = join();
        let value = |step| LoadResult::Value {
            hit: Hit {
                value: Some(Arc::new(1)),
                source: HitSource::Loaded,
                age: None,
                stale: false,
            },
            step,
        };
        let gets = |step, waiter| value(step).hit(waiter).is_some();
        assert!(gets(storing, &first) && gets(storing, &before_the_load));
        assert!(gets(storing, &while_it_loads) && !gets(storing, &while_it_stores));
        // A refused value is good only for callers that came before the row was read.
        assert!(gets(loading, &first) && gets(loading, &before_the_load));
        assert!(!gets(loading, &while_it_loads) && !gets(loading, &while_it_stores));
    }
}
