//! What happens on a miss: lease, load, fill.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    Count, Down, Found, Hit, Inner, Seen, Source, Stampede,
    envelope::{self, Meta, millis},
    flight::{Progress, Seat},
    is_down,
    l1::Ticket,
    lease::{self, Grant},
    load::{self, Load, Loaded, Loader, Notes},
};
use crate::{
    caching::tags::{Snapshot, Tags},
    codec::Codec,
    error::{Error, Result},
    key::Entity,
};

/// Why a flight starts.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// There is nothing to serve. `seen` is the stamp of what is there and cannot be used.
    Miss { seen: Vec<u8> },
    /// There is a value, which the callers have got already.
    Refresh { seen: Vec<u8> },
    /// The store is down: load beside it.
    Bypass,
}

/// What a flight brought.
#[derive(Debug)]
pub(crate) enum Landing<V> {
    /// A value that was good at some moment after `step` began.
    Value {
        hit: Hit<V>,
        step: u64,
    },
    /// Somebody else refreshes it.
    NotNeeded,
    Failed(Arc<Error>),
}

impl<V> Clone for Landing<V> {
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

impl<V> Landing<V> {
    /// The answer for the caller in this seat, if the flight has one for it.
    ///
    /// A value is good for those who came before it was read or stored: to them an invalidation that followed was
    /// concurrent. Whoever came later saw that the store does not have it, perhaps because it is invalidated
    /// already, and must ask again.
    pub(crate) fn hit(self, seat: &Seat<Self>) -> Option<Hit<V>> {
        match self {
            Self::Value { hit, step } if seat.came_before(step) => Some(hit),
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
    /// A lease outlasts the load and what follows it, and no more.
    pub(crate) fn lease_lasts(&self) -> Duration {
        self.settings.hard + 2 * self.store.deadline()
    }

    pub(crate) async fn fly(
        &self,
        name: &Arc<str>,
        entity: &Entity,
        loader: Loader<V>,
        purpose: Purpose,
        progress: &Progress,
    ) -> Landing<V> {
        let (mut seen, may_be_left_out) = match &purpose {
            Purpose::Miss { seen } | Purpose::Refresh { seen } => {
                (seen.clone(), purpose.may_be_left_out())
            }
            Purpose::Bypass => return self.bypass(name, loader, progress).await,
        };
        let shared = self.settings.stampede != Stampede::Lease;
        let lasts = self.lease_lasts();
        let patience = Instant::now() + 2 * lasts;
        let token = lease::token();
        let mut ear = None;
        loop {
            let step = progress.step();
            let ticket = self.l1.as_ref().map(|level| level.ticket(name));
            let ask = lease::ask(entity, &token, lasts, shared, &seen).run::<Grant>(&self.store);
            // The tags' state is wanted from before the load; asked for together, it costs no time. After a
            // wait it is taken anew, or tags invalidated meanwhile would spoil the load for nothing.
            let (asked, snapshot) = match ear {
                None => {
                    let (asked, tags) = tokio::join!(ask, self.tags.snapshot(&self.store));
                    (asked, Some(tags))
                }
                Some(_) => (ask.await, None),
            };
            let grant = match self.watched(asked) {
                Ok(grant) => grant,
                Err(error)
                    if is_down(&error) && self.settings.down == Down::Load && !may_be_left_out =>
                {
                    return self.bypass(name, loader, progress).await;
                }
                Err(error) => return Landing::failed(error),
            };
            match grant {
                Grant::Value { bytes, left } => match self.examine(bytes, left).await {
                    Ok(Seen::Found(found)) if !found.hit.stale => {
                        self.remember(name, ticket.as_ref(), &found);
                        return Landing::Value {
                            hit: found.hit,
                            step,
                        };
                    }
                    Ok(Seen::Found(Found { stamp, .. }) | Seen::Unusable { stamp }) => seen = stamp,
                    Ok(Seen::Nothing) => seen.clear(),
                    Err(error) => return Landing::failed(error),
                },
                Grant::Lease { token } => {
                    return self
                        .load(
                            name,
                            entity,
                            loader,
                            Some(Lease {
                                token: &token,
                                ticket: ticket.as_ref(),
                                snapshot,
                            }),
                            &purpose,
                            progress,
                        )
                        .await;
                }
                Grant::Wait(_) | Grant::Fenced if may_be_left_out => return Landing::NotNeeded,
                Grant::Fenced => {
                    self.stats.add(Count::Bypass);
                    return self
                        .load(name, entity, loader, None, &purpose, progress)
                        .await;
                }
                Grant::Wait(left) => {
                    if Instant::now() >= patience {
                        return Landing::failed(Error::timeout(
                            "waited in vain for the load of another process",
                        ));
                    }
                    // A moment longer than the lease, so that it is over when we ask again.
                    let until = (Instant::now() + left + Duration::from_millis(1)).min(patience);
                    match &mut ear {
                        None => {
                            self.stats.add(Count::Wait);
                            ear = Some(self.listen(entity, until).await);
                        }
                        Some(ear) => lease::Ear::wait(ear, until).await,
                    }
                }
            }
        }
    }

    /// Loads beside the store, while that is down, and not too many at once.
    async fn bypass(&self, name: &Arc<str>, loader: Loader<V>, progress: &Progress) -> Landing<V> {
        let Ok(_place) = self.down_loads.try_acquire() else {
            return Landing::failed(Error::unavailable(
                "the store is down, and as many loads as are allowed are under way",
            ));
        };
        self.stats.add(Count::Bypass);
        let entity = match self.keys.entity(name) {
            Ok(entity) => entity,
            Err(error) => return Landing::failed(error),
        };
        self.load(name, &entity, loader, None, &Purpose::Bypass, progress)
            .await
    }

    /// Runs the loader, and stores what it brings if there is a lease for it.
    async fn load(
        &self,
        name: &Arc<str>,
        entity: &Entity,
        loader: Loader<V>,
        lease: Option<Lease<'_>>,
        purpose: &Purpose,
        progress: &Progress,
    ) -> Landing<V> {
        // Before the load: a tag invalidated from here on makes the entry a miss.
        let (lease, snapshot) = match lease {
            Some(Lease {
                token,
                ticket,
                snapshot,
            }) => {
                let taken = match snapshot {
                    Some(taken) => taken,
                    None => self.tags.snapshot(&self.store).await,
                };
                match self.watched(taken) {
                    Ok(snapshot) => (Some((token, ticket)), Some(snapshot)),
                    Err(error) if is_down(&error) => (Some((token, ticket)), None),
                    Err(error) => {
                        self.give_up(entity, Some((token, ticket)), Duration::ZERO)
                            .await;
                        return Landing::failed(error);
                    }
                }
            }
            None => (None, None),
        };
        let mut step = progress.step();
        self.stats.add(Count::Load);
        let context = Load::new();
        let notes = context.notes.clone();
        let begun = Instant::now();
        let loaded = load::guarded(self.settings.hard, || loader(context)).await;
        let load_time = begun.elapsed();
        let notes = std::mem::take(&mut *notes.lock());
        let (value, sealed) = match loaded.and_then(|loaded| {
            let value = match loaded {
                Loaded::Found(value) => Some(value),
                Loaded::Absent => None,
            };
            let sealed = self.seal(value.as_ref(), &notes, snapshot.as_ref(), load_time)?;
            Ok((value, sealed))
        }) {
            Ok(done) => done,
            Err(error) => {
                self.stats.add(Count::LoadFailed);
                // Where there is a value to serve, a broken source is given a rest.
                let rest = match purpose {
                    Purpose::Refresh { .. } => lease::REST,
                    _ => Duration::ZERO,
                };
                self.give_up(entity, lease, rest).await;
                return Landing::failed(error);
            }
        };
        let hit = Hit {
            value: value.map(Arc::new),
            source: Source::Loaded,
            age: Some(Duration::ZERO),
            stale: false,
        };
        if let (Some((token, ticket)), Some(_)) = (lease, &snapshot) {
            let storing = progress.step();
            match self.store_entry(name, entity, token, &sealed).await {
                Ok(true) => {
                    // The lease stood until now, so the value is still good; that of a refused fill may not be.
                    step = storing;
                    let found = Found {
                        hit: hit.clone(),
                        stamp: envelope::stamp(&sealed.bytes).to_vec(),
                        fresh_for: Some(sealed.meta.fresh.saturating_sub(load_time)),
                        meta: sealed.meta,
                    };
                    self.remember(name, ticket, &found);
                }
                Ok(false) => self.stats.add(Count::FillRefused),
                Err(error) => {
                    tracing::debug!(%error, "a loaded value could not be stored");
                    self.stats.add(Count::FillLost);
                }
            }
        } else if let Some(last_seen) = &self.last_seen {
            last_seen.insert(name.clone(), hit.value.clone());
        }
        Landing::Value { hit, step }
    }

    /// Whether the entry was stored and is good now.
    async fn store_entry(
        &self,
        name: &Arc<str>,
        entity: &Entity,
        token: &str,
        sealed: &Sealed,
    ) -> Result<bool> {
        let keep_ms = millis(sealed.meta.keep);
        self.index_entry(name, sealed).await?;
        let filled = lease::fill(entity, token, &sealed.bytes, keep_ms)
            .run::<u8>(&self.store)
            .await;
        if self.watched(filled)? == 0 {
            return Ok(false);
        }
        if sealed.meta.tags.is_empty() {
            return Ok(true);
        }
        // A tag invalidated during the load has made the entry a miss; callers that came since must not get it.
        let valid = self.tags.valid(&self.store, &[&sealed.meta.tags]).await;
        Ok(self.watched(valid)?[0])
    }

    /// Adds an entry to the sets of its tags, where there are such sets. Before it is stored: no entry is
    /// ever in the cache and not in its sets.
    pub(crate) async fn index_entry(&self, name: &str, sealed: &Sealed) -> Result<()> {
        if self.tags.mode() == Tags::Index && !sealed.meta.tags.is_empty() {
            let tags: Vec<Arc<str>> = sealed.meta.tags.iter().map(|t| t.tag.clone()).collect();
            let keep_ms = millis(sealed.meta.keep);
            self.watched(self.tags.index(&self.store, name, &tags, keep_ms).await)?;
        }
        Ok(())
    }

    async fn give_up(
        &self,
        entity: &Entity,
        lease: Option<(&str, Option<&Ticket>)>,
        rest: Duration,
    ) {
        if let Some((token, _)) = lease {
            let released = lease::release(entity, token, rest)
                .run::<u8>(&self.store)
                .await;
            // If this fails, the lease ends by itself.
            let _ = self.watched(released);
        }
    }

    /// The entry for a loaded value.
    pub(crate) fn seal(
        &self,
        value: Option<&V>,
        notes: &Notes,
        snapshot: Option<&Snapshot>,
        load_time: Duration,
    ) -> Result<Sealed> {
        let settings = &self.settings;
        let base = match (notes.ttl, value) {
            (Some(ttl), _) => ttl,
            (None, Some(_)) => settings.ttl,
            (None, None) => settings.negative_ttl,
        };
        if base < Duration::from_millis(1) {
            return Err(Error::config("a TTL is at least 1 ms"));
        }
        let factor = match settings.jitter {
            0.0 => 1.0,
            jitter => 1.0 + rand::random_range(-jitter..=jitter),
        };
        let fresh = base.mul_f64(factor).max(Duration::from_millis(1));
        // That a value was absent is no help when its source fails.
        let stale = match value {
            Some(_) => settings.stale_for,
            None => Duration::ZERO,
        };
        let meta = Meta {
            version: notes.version,
            load_time,
            fresh,
            keep: fresh + stale,
            tags: match snapshot {
                Some(snapshot) => self.tags.stamps(&notes.tags, snapshot),
                None => Vec::new(),
            },
        };
        let bytes = envelope::seal::<C, V>(settings.schema, &meta, value)?;
        Ok(Sealed { meta, bytes })
    }
}

/// The right to store what is loaded.
struct Lease<'a> {
    token: &'a str,
    /// For the first level, from before the lease was asked for.
    ticket: Option<&'a Ticket>,
    /// The tags, if they were read already.
    snapshot: Option<Result<Snapshot>>,
}

/// An entry ready to be stored.
pub(crate) struct Sealed {
    pub(crate) meta: Meta,
    pub(crate) bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::{super::flight::Flights, *};

    /// Between a fill on the server and the word of it an invalidation may be over, in another process. Whoever comes
    /// then has found nothing in the store and meets the flight that is about to land.
    #[tokio::test]
    async fn who_comes_while_a_value_is_being_stored_does_not_get_it() {
        let flights = Flights::<Landing<u32>>::new();
        let name: Arc<str> = "k".into();
        let mut pilot = None;
        let mut board = || flights.board(&name, |started| pilot = Some(started));
        let first = board();
        let before_the_load = board();
        let progress = pilot.as_ref().expect("it started").progress.clone();
        let loading = progress.step();
        let board = || flights.board(&name, |_| panic!("it is under way"));
        let while_it_loads = board();
        let storing = progress.step();
        let while_it_stores = board();
        let value = |step| Landing::Value {
            hit: Hit {
                value: Some(Arc::new(1)),
                source: Source::Loaded,
                age: None,
                stale: false,
            },
            step,
        };
        let gets = |step, seat| value(step).hit(seat).is_some();
        assert!(gets(storing, &first) && gets(storing, &before_the_load));
        assert!(gets(storing, &while_it_loads) && !gets(storing, &while_it_stores));
        // Refused, it is good for those only who came before the row was read.
        assert!(gets(loading, &first) && gets(loading, &before_the_load));
        assert!(!gets(loading, &while_it_loads) && !gets(loading, &while_it_stores));
    }
}
