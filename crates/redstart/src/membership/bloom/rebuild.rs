//! A new generation beside the old one, and the switch.
//!
//! 1. `building`: the root names the next generation, its partitions are made, and every old partition is marked.
//!    From its mark on, an add to an old partition tells the adder to add to the next generation too. `contains`
//!    asks the old one.
//! 2. The application adds everything that it knows to the next generation.
//! 3. `sealing`: every old partition is marked as moved; from its mark on, adds and questions about its elements go
//!    to the next generation. Nothing is lost between two partitions' marks, because an element belongs to one.
//! 4. `ready`: the root names the next generation as the current one, and the old partitions are freed.
//!
//! A rebuild whose process died in step 1 or 2 is replaced by the next one; in step 3 it is completed by the next one, unless
//! a failover lost the mark of a partition in between: then it is replaced too, and calls about elements of the partitions that
//! had moved are errors until the next rebuild has ended.
//! A failover may lose the root's change to `sealing` while partitions are marked as moved: then the root says `building`,
//! and the rebuild is completed all the same. If it lost the whole rebuild, partitions name a generation that the root does
//! not: calls about their elements are errors until the next rebuild has ended.

use std::sync::Arc;

use super::{
    Bloom,
    builder::{check_partitions, check_shape},
    check_elements,
    config::Config,
    generation::{Generation, Mark, Named, Verb},
    root::{Root, State, read_root, swap_root},
};
use crate::{
    error::{Error, Result},
    observe,
};

/// A rebuild in progress: add everything that the filter should contain, then call [`finish`](Self::finish).
///
/// Dropped before that, the filter stays as it was, and adds go to both generations until the next rebuild or
/// [`abandon`](Self::abandon).
#[derive(Debug)]
#[must_use = "a rebuild takes effect when it is finished"]
pub struct BloomRebuild {
    filter: Bloom,
    next: Arc<Generation>,
}

impl Bloom {
    /// Starts to build the filter again, with another capacity or without what was removed.
    ///
    /// When this returns, every add by any process goes to both generations. Read the source of truth *after* that and
    /// add all of it to the [`BloomRebuild`]: what was added before is in what you read, what comes later is added to both.
    /// For that, always write to the source of truth first and to the filter second. An unfinished rebuild of another
    /// process is replaced. A filter that says that it must be rebuilt, because a server lost a part of it, is whole again
    /// when the rebuild has ended.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// use redstart::{Store, membership::Bloom};
    /// let store = Store::connect("memory://").await?;
    /// let users = Bloom::builder(&store, "app", "users").capacity(1_000).create().await?;
    /// users.add_many(&["ann", "bob"]).await?;
    ///
    /// let rebuild = users.rebuild(50_000, 0.001).await?;
    /// users.add("cid").await?; // goes to both
    /// rebuild.add_many(&["ann"]).await?; // bob has left
    /// rebuild.finish().await?;
    ///
    /// assert_eq!(users.contains_many(&["ann", "bob", "cid"]).await?, [true, false, true]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad capacity or error rate or if the filter is gone; otherwise those of
    /// the [store](crate::Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a rebuild may have begun, as if its handle had been dropped.
    pub async fn rebuild(&self, capacity: u64, error_rate: f64) -> Result<BloomRebuild> {
        check_shape(capacity, error_rate)?;
        observe::operation("bloom.rebuild", self.keys.namespace(), async {
            for _ in 0..3 {
                let row = self.reload().await?;
                let sealed = row.phase == "sealing";
                if sealed {
                    match self.switch(&row).await {
                        Ok(()) => continue,
                        // Partitions are not as it left them: servers lost marks, and with them adds to the next generation.
                        Err(error) if error.is_config() => {}
                        Err(error) => return Err(error),
                    }
                }
                let (current, replaced) = {
                    let state = self.state.read();
                    (state.current.clone(), state.next.clone())
                };
                if let Some(next) = &replaced
                    && !sealed
                    && current.any_moved(&self.store, next.number()).await?
                {
                    self.seal(&row).await?;
                    continue;
                }
                let config = Config::new(
                    current.config.mode,
                    current.config.scaling,
                    capacity,
                    error_rate,
                    current.config.key_bytes,
                );
                check_partitions(&config)?;
                let building = Root {
                    phase: "building".to_owned(),
                    current: row.current.clone(),
                    next: config.text(),
                };
                if swap_root(&self.store, &self.root, &row, &building).await? != building {
                    continue;
                }
                {
                    let mut state = self.state.write();
                    *state = State::new(&self.keys, &self.name, &building, Some(&state))?;
                }
                let next = Arc::new(Generation::new(&self.keys, &self.name, config)?);
                self.begin(&building, &current, &next).await?;
                if let Some(replaced) = replaced {
                    replaced.delete(&self.store).await?;
                }
                return Ok(BloomRebuild {
                    filter: self.clone(),
                    next,
                });
            }
            Err(Error::unavailable(
                "other callers keep rebuilding the filter",
            ))
        })
        .await
    }

    /// Makes the next generation and marks the partitions of the current one, unless another rebuild has replaced this one.
    ///
    /// A mark changes only what was read before the root was: a process that stood still in between, and a request that is
    /// read late, cannot take a partition back from the rebuild that replaced this one.
    async fn begin(&self, building: &Root, current: &Generation, next: &Generation) -> Result<()> {
        next.create(&self.store).await?;
        for _ in 0..10 {
            let states = current.states(&self.store).await?;
            if read_root(&self.store, &self.root).await? != *building {
                // Whoever replaced it may have deleted the generation before it was made.
                next.delete(&self.store).await?;
                return Err(taken_over());
            }
            if current
                .build_beside(&self.store, &states, next.number())
                .await?
            {
                return Ok(());
            }
        }
        Err(Error::unavailable(
            "other callers keep rebuilding the filter",
        ))
    }

    /// Seals a rebuild and completes it.
    async fn seal(&self, building: &Root) -> Result<()> {
        let sealing = Root {
            phase: "sealing".to_owned(),
            ..building.clone()
        };
        if swap_root(&self.store, &self.root, building, &sealing).await? != sealing {
            return Err(taken_over());
        }
        self.switch(&sealing).await
    }

    /// Completes the switch to the next generation. Several processes may do so at once.
    async fn switch(&self, sealing: &Root) -> Result<()> {
        let state = State::new(&self.keys, &self.name, sealing, None)?;
        let Some(next) = state.next else {
            return Ok(());
        };
        let ready = Root {
            phase: "ready".to_owned(),
            current: sealing.next.clone(),
            next: String::new(),
        };
        let building = Root {
            phase: "building".to_owned(),
            ..sealing.clone()
        };
        for _ in 0..3 {
            let mark = Mark {
                from: "b",
                named: next.number(),
                to: "m",
                following: next.number(),
                lost: true,
            };
            state.current.mark(&self.store, mark).await?;
            let found = swap_root(&self.store, &self.root, sealing, &ready).await?;
            if found.current == ready.current {
                state.current.retire(&self.store).await?;
                self.reload().await?;
                return Ok(());
            }
            if found != building {
                return Err(taken_over());
            }
            // A failover lost the seal, and perhaps marks with it.
            swap_root(&self.store, &self.root, &building, sealing).await?;
        }
        Err(Error::unavailable(
            "the store keeps losing that the rebuild is sealed",
        ))
    }
}

impl BloomRebuild {
    /// Adds elements to the new generation.
    ///
    /// # Errors
    ///
    /// As [`Bloom::add_many`]; also if another rebuild took over.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, any of the elements may have been added.
    pub async fn add_many<E: AsRef<[u8]>>(&self, elements: &[E]) -> Result<()> {
        let elements = check_elements(elements)?;
        let all: Vec<usize> = (0..elements.len()).collect();
        observe::operation("bloom.add", self.filter.keys.namespace(), async {
            let store = &self.filter.store;
            let visit = self
                .next
                .visit(store, &self.filter.root, Verb::Add, &elements, &all)
                .await?;
            if visit.named != Named::No && visit.answers.len() == elements.len() {
                Ok(())
            } else {
                Err(taken_over())
            }
        })
        .await
    }

    /// Makes the new generation the current one.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if another rebuild took over; otherwise those of the
    /// [store](crate::Store::query). If it fails half-way, the filter still answers correctly and the next rebuild
    /// completes it. If a failover lost a part of what this rebuild wrote, the next one begins from nothing, and until it has ended
    /// calls about some elements are errors.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the switch has happened, has not, or is completed by the next rebuild, with the exception
    /// above; an element that was added is never reported as absent.
    pub async fn finish(self) -> Result<()> {
        let filter = &self.filter;
        observe::operation("bloom.finish", filter.keys.namespace(), async {
            let row = read_root(&filter.store, &filter.root).await?;
            if row.next != self.next.config.text() {
                // A repeated attempt finds its work done.
                return if row.current == self.next.config.text() {
                    Ok(())
                } else {
                    Err(taken_over())
                };
            }
            filter.seal(&row).await
        })
        .await
    }

    /// Abandons the rebuild: the filter stays as it was.
    ///
    /// # Errors
    ///
    /// Those of the [store](crate::Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, adds may go to both generations until the next rebuild.
    pub async fn abandon(self) -> Result<()> {
        let filter = &self.filter;
        observe::operation("bloom.abandon", filter.keys.namespace(), async {
            let row = read_root(&filter.store, &filter.root).await?;
            if row.phase != "building" || row.next != self.next.config.text() {
                return Ok(());
            }
            // First adds stop going to the new generation, then it is deleted.
            let current = State::new(&filter.keys, &filter.name, &row, None)?.current;
            let number = self.next.number();
            let mark = Mark {
                from: "b",
                named: number,
                to: "o",
                following: number,
                lost: false,
            };
            current.mark(&filter.store, mark).await?;
            let ready = Root {
                phase: "ready".to_owned(),
                current: row.current.clone(),
                next: String::new(),
            };
            swap_root(&filter.store, &filter.root, &row, &ready).await?;
            self.next.delete(&filter.store).await?;
            filter.reload().await?;
            Ok(())
        })
        .await
    }
}

fn taken_over() -> Error {
    Error::config("another rebuild of the filter has replaced this one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    /// Announces a rebuild, as a process does that stands still right afterwards.
    async fn announce(filter: &Bloom) -> Result<(Root, Arc<Generation>, Generation)> {
        let row = filter.reload().await?;
        let current = filter.state.read().current.clone();
        let old = &current.config;
        let config = Config::new(old.mode, old.scaling, 1_000, 0.01, old.key_bytes);
        let building = Root {
            phase: "building".to_owned(),
            current: row.current.clone(),
            next: config.text(),
        };
        assert_eq!(
            swap_root(&filter.store, &filter.root, &row, &building).await?,
            building
        );
        let next = Generation::new(&filter.keys, &filter.name, config)?;
        Ok((building, current, next))
    }

    #[tokio::test]
    async fn a_rebuild_that_was_replaced_takes_no_partition_back() -> Result<()> {
        let store = Store::connect("memory://").await?;
        let filter = Bloom::builder(&store, "app", "users")
            .capacity(1_000)
            .create()
            .await?;
        filter.add("ann").await?;
        // It goes on before, or after, it looked at the partitions.
        for looked in [false, true] {
            // One that nobody finished: its marks are still there.
            let _ = filter.rebuild(500, 0.01).await?;
            let (building, current, next) = announce(&filter).await?;
            let states = current.states(&store).await?;
            let rebuild = filter.rebuild(2_000, 0.01).await?;
            if looked {
                let mine = next.number();
                assert!(!current.build_beside(&store, &states, mine).await?);
            } else {
                let late = filter.begin(&building, &current, &next).await;
                assert!(late.is_err_and(|error| error.is_config()));
            }
            filter.add("bob").await?;
            rebuild.add_many(&["ann"]).await?;
            rebuild.finish().await?;
            assert_eq!(filter.contains_many(&["ann", "bob"]).await?, [true, true]);
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_sealed_rebuild_whose_marks_were_lost_is_replaced() -> Result<()> {
        let store = Store::connect("memory://").await?;
        let filter = Bloom::builder(&store, "app", "users")
            .capacity(1_000)
            .create()
            .await?;
        let (building, ..) = announce(&filter).await?;
        let sealing = Root {
            phase: "sealing".to_owned(),
            ..building.clone()
        };
        swap_root(&store, &filter.root, &building, &sealing).await?;
        let rebuild = filter.rebuild(2_000, 0.01).await?;
        rebuild.add_many(&["ann"]).await?;
        rebuild.finish().await?;
        assert!(filter.contains("ann").await?);
        Ok(())
    }

    #[tokio::test]
    async fn a_root_that_is_two_rebuilds_behind_is_an_error_until_the_next_rebuild() -> Result<()> {
        let store = Store::connect("memory://").await?;
        let filter = Bloom::builder(&store, "app", "users")
            .capacity(1_000)
            .create()
            .await?;
        let first = filter.rebuild(1_000, 0.01).await?;
        let before = read_root(&store, &filter.root).await?;
        first.finish().await?;
        let second = filter.rebuild(1_000, 0.01).await?;
        second.finish().await?;
        // A failover: the node of the root forgets both, those of the partitions do not.
        let now = read_root(&store, &filter.root).await?;
        swap_root(&store, &filter.root, &now, &before).await?;
        let lost = filter.contains("ann").await;
        assert!(lost.as_ref().is_err_and(Error::is_config), "{lost:?}");
        let rebuild = filter.rebuild(1_000, 0.01).await?;
        rebuild.add_many(&["ann"]).await?;
        rebuild.finish().await?;
        assert!(filter.contains("ann").await?);
        assert!(!filter.contains("bob").await?);
        Ok(())
    }
}
