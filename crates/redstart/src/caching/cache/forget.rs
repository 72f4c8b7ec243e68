//! What leaves the cache: in the store, and in this process.

use serde::{Serialize, de::DeserializeOwned};

use super::{Inner, stats::Count};
use crate::{caching::tags::Tags, codec::Codec, error::Result, script::Batch};

impl<V, C> Inner<V, C>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    C: Codec,
{
    /// Removes the entries that the index has for a tag, where there is one.
    pub(crate) async fn remove_indexed(&self, tag: &str) -> Result<()> {
        if self.tags.mode() != Tags::Index {
            return Ok(());
        }
        loop {
            let names = self.tags.take(&self.store, tag, 500).await?;
            if names.is_empty() {
                return Ok(());
            }
            self.remove(&names).await?;
        }
    }

    pub(super) async fn remove(&self, names: &[String]) -> Result<()> {
        let entities = names
            .iter()
            .map(|name| self.keys.entity(name))
            .collect::<Result<Vec<_>>>()?;
        let mut batch = Batch::new();
        for (name, entity) in names.iter().zip(&entities) {
            batch.push(self.invalidation(entity, name));
        }
        let results = batch.run::<u64>(&self.store).await;
        // After the store, so that a reader from now on reads there what is left. Also if the store failed: it may
        // have been carried out.
        for name in names {
            self.forget(name);
            self.stats.add(Count::Invalidation);
        }
        for result in results? {
            result?;
        }
        Ok(())
    }
}

impl<V: Send + Sync + 'static, C> Inner<V, C> {
    /// Forgets a key in this process.
    pub(crate) fn forget(&self, name: &str) {
        self.flights.detach(name);
        if let Some(level) = &self.l1 {
            level.changed(name);
        }
        if let Some(last_seen) = &self.last_seen {
            last_seen.remove(name);
        }
    }

    /// Forgets the entries with a tag in this process.
    pub(crate) fn tag_changed(&self, tag: &str) {
        // Nobody knows which running loads carry the tag.
        self.flights.detach_all();
        if let Some(level) = &self.l1 {
            level.tag_changed(tag);
        }
    }

    /// Forgets all keys in this process.
    pub(crate) fn forget_all(&self) {
        self.flights.detach_all();
        self.tags.forget_snapshot();
        if let Some(level) = &self.l1 {
            self.stats.add(Count::Flush);
            level.flush();
        }
        if let Some(last_seen) = &self.last_seen {
            last_seen.clear();
        }
    }
}
