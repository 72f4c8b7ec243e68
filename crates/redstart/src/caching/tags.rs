//! Tags: many entries invalidated by one command.
//!
//! Each cache has 16 tag shards, each a hash in the store:
//!
//! | field | meaning |
//! |---|---|
//! | `#id` | a random number, drawn when the shard was made |
//! | `#n` | how many invalidations the shard has seen |
//! | `t:<tag>` | the count at which the tag was last invalidated |
//!
//! Before a value is loaded, `#id` and `#n` of the shards are read. The entry keeps, for each of its tags,
//! what its shard said then. At a read it is good only if the shard has the same identity and the tag's last
//! invalidation is not after that count. So
//!
//! - invalidating a tag is one small script, however many entries carry it;
//! - a tag that the loader learns only from the row is safe: the count was taken before the row was read;
//! - a shard that was evicted or flushed comes back with another identity: its entries are misses, and nothing
//!   that was invalidated comes back to life;
//! - no clock takes part.
//!
//! A shard holds up to 10,000 tags that were ever invalidated; then it begins anew under a fresh identity,
//! which costs its entries one miss each.
//!
//! With [`Tags::Index`] a set of keys for each tag is kept too, for people to look at and so that an
//! invalidation frees the memory at once; it costs one more round trip a load. The versions decide in both modes.

use std::sync::Arc;

use redis::Pipeline;

use super::cache::envelope::TagStamp;
use crate::{
    error::{Error, Result},
    key::{Entity, Keys},
    script::{Batch, Script},
    store::Store,
};

pub(crate) const SHARDS: usize = 16;
const MAX_TAG: usize = 512;
const MAX_FIELDS: usize = 10_000;
/// Longer than any entry is kept; an entry that outlives its shard is a miss, not a danger.
const SHARD_TTL_MS: u64 = 60 * 24 * 3600 * 1000;

static SEED: Script = Script::new("cache.seed_tags", include_str!("tags/seed.lua"));
static BUMP: Script = Script::new("cache.invalidate_tag", include_str!("tags/bump.lua"));
static INDEX: Script = Script::new("cache.index_tag", include_str!("tags/index.lua"));

/// How entries find their tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tags {
    /// Versions only: an invalidated entry is a miss when it is read, and its memory is freed by its TTL.
    #[default]
    Version,
    /// Versions, and a set of keys for each tag: entries can be listed, and are removed at once.
    Index,
}

/// What the shards said before a load.
pub(crate) type Snapshot = [(u64, u64); SHARDS];

pub(crate) fn shard_of(tag: &str) -> usize {
    usize::from(crate::key::slot(tag.as_bytes())) % SHARDS
}

/// Checks a tag before anything is sent.
pub(crate) fn check(tag: &str) -> Result<()> {
    if tag.is_empty() {
        return Err(Error::config("a tag must not be empty"));
    }
    if tag.len() > MAX_TAG {
        return Err(Error::config(format!(
            "a tag has at most {MAX_TAG} bytes, not {}",
            tag.len()
        )));
    }
    if tag.chars().any(char::is_control) {
        return Err(Error::config("a tag has no control characters"));
    }
    Ok(())
}

/// The tag shards of one cache.
pub(crate) struct TagBook {
    mode: Tags,
    keys: Keys,
    shards: Vec<Entity>,
    index: Keys,
}

impl TagBook {
    pub(crate) fn new(namespace: &str, mode: Tags) -> Result<Self> {
        let keys = Keys::new(namespace, "cache-tag")?;
        let shards = (0..SHARDS)
            .map(|shard| keys.entity(&shard.to_string()))
            .collect::<Result<_>>()?;
        Ok(Self {
            mode,
            keys,
            shards,
            index: Keys::new(namespace, "cache-index")?,
        })
    }

    pub(crate) fn mode(&self) -> Tags {
        self.mode
    }

    pub(crate) fn prefix(&self) -> Option<String> {
        self.keys.prefix()
    }

    /// The shard whose key this is.
    pub(crate) fn shard_by_key(&self, key: &[u8]) -> Option<usize> {
        let name = self.keys.name_of(key)?;
        name.parse().ok().filter(|shard| *shard < SHARDS)
    }

    /// What all shards say now; one round trip a node, and a second only the first time.
    pub(crate) async fn snapshot(&self, store: &Store) -> Result<Snapshot> {
        let mut pipeline = Pipeline::with_capacity(SHARDS);
        for shard in &self.shards {
            pipeline.cmd("HMGET").arg(shard.key()).arg("#id").arg("#n");
        }
        let read: Vec<(Option<String>, Option<u64>)> = store.pipeline(&pipeline).await?;
        let mut snapshot = [(0, 0); SHARDS];
        let mut batch = Batch::new();
        let mut missing = Vec::new();
        for (at, seen) in read.into_iter().enumerate().take(SHARDS) {
            match seen {
                (Some(id), Some(count)) => snapshot[at] = (identity(&id), count),
                _ => {
                    missing.push(at);
                    batch.push(
                        SEED.on(&self.shards[at])
                            .key()
                            .arg(fresh_identity())
                            .arg(SHARD_TTL_MS)
                            .idempotent(),
                    );
                }
            }
        }
        for (at, seeded) in missing.into_iter().zip(batch.run(store).await?) {
            let (id, count): (String, u64) = seeded?;
            snapshot[at] = (identity(&id), count);
        }
        Ok(snapshot)
    }

    pub(crate) fn stamps(&self, tags: &[Arc<str>], snapshot: &Snapshot) -> Vec<TagStamp> {
        tags.iter()
            .map(|tag| {
                let (shard_id, count) = snapshot[shard_of(tag)];
                TagStamp {
                    tag: tag.clone(),
                    shard_id,
                    count,
                }
            })
            .collect()
    }

    /// For each list of stamps, whether all of its tags still stand; one round trip a node for all of them.
    pub(crate) async fn valid(&self, store: &Store, lists: &[&[TagStamp]]) -> Result<Vec<bool>> {
        let mut wanted: Vec<Vec<&str>> = vec![Vec::new(); SHARDS];
        for stamp in lists.iter().flat_map(|list| list.iter()) {
            let tags = &mut wanted[shard_of(&stamp.tag)];
            if !tags.contains(&&*stamp.tag) {
                tags.push(&stamp.tag);
            }
        }
        let mut pipeline = Pipeline::new();
        for (shard, tags) in self.shards.iter().zip(&wanted) {
            if !tags.is_empty() {
                let cmd = pipeline.cmd("HMGET").arg(shard.key()).arg("#id");
                for tag in tags {
                    cmd.arg(field(tag));
                }
            }
        }
        if pipeline.is_empty() {
            return Ok(vec![true; lists.len()]);
        }
        let mut replies: Vec<Vec<Option<String>>> = store.pipeline(&pipeline).await?;
        replies.reverse();
        let mut now: Vec<(Option<u64>, Vec<u64>)> = Vec::with_capacity(SHARDS);
        for tags in &wanted {
            if tags.is_empty() {
                now.push((None, Vec::new()));
                continue;
            }
            let mut reply = replies.pop().unwrap_or_default().into_iter();
            let id = reply.next().flatten().map(|id| identity(&id));
            let counts = reply
                .map(|count| count.and_then(|count| count.parse().ok()).unwrap_or(0))
                .collect();
            now.push((id, counts));
        }
        let stands = |stamp: &TagStamp| {
            let shard = shard_of(&stamp.tag);
            let (id, counts) = &now[shard];
            let at = wanted[shard].iter().position(|tag| *tag == &*stamp.tag);
            let last = at.and_then(|at| counts.get(at)).copied();
            *id == Some(stamp.shard_id) && last.is_some_and(|last| last <= stamp.count)
        };
        Ok(lists.iter().map(|list| list.iter().all(stands)).collect())
    }

    /// Makes every entry with this tag a miss.
    pub(crate) async fn bump(&self, store: &Store, tag: &str, bus: &str) -> Result<()> {
        BUMP.on(&self.shards[shard_of(tag)])
            .key()
            .arg(field(tag))
            .arg(fresh_identity())
            .arg(MAX_FIELDS)
            .arg(SHARD_TTL_MS)
            .arg(bus)
            .arg(format!("t{tag}"))
            // Invalidating twice is as good as once.
            .idempotent()
            .run(store)
            .await
    }

    /// Adds an entry to the sets of its tags, which live at least as long as it will.
    pub(crate) async fn index(
        &self,
        store: &Store,
        name: &str,
        tags: &[Arc<str>],
        keep_ms: u64,
    ) -> Result<()> {
        let entities = tags
            .iter()
            .map(|tag| self.index.entity(tag))
            .collect::<Result<Vec<_>>>()?;
        let mut batch = Batch::new();
        for entity in &entities {
            batch.push(
                INDEX
                    .on(entity)
                    .key()
                    .arg(name)
                    .arg(keep_ms.saturating_mul(2))
                    .idempotent(),
            );
        }
        for result in batch.run::<()>(store).await? {
            result?;
        }
        Ok(())
    }

    /// Takes up to `count` entries out of a tag's set.
    pub(crate) async fn take(&self, store: &Store, tag: &str, count: usize) -> Result<Vec<String>> {
        let entity = self.index.entity(tag)?;
        store
            .query(redis::cmd("SPOP").arg(entity.key()).arg(count))
            .await
    }

    /// The names in a tag's set.
    pub(crate) async fn members(&self, store: &Store, tag: &str) -> Result<Vec<String>> {
        let entity = self.index.entity(tag)?;
        let mut names = Vec::new();
        let mut cursor = 0u64;
        loop {
            let mut cmd = redis::cmd("SSCAN");
            cmd.arg(entity.key()).arg(cursor).arg("COUNT").arg(500);
            let (next, page): (u64, Vec<String>) = store.query(&cmd).await?;
            names.extend(page);
            cursor = next;
            if cursor == 0 {
                names.sort_unstable();
                names.dedup();
                return Ok(names);
            }
        }
    }
}

fn field(tag: &str) -> String {
    format!("t:{tag}")
}

fn fresh_identity() -> String {
    format!("{:016x}", rand::random::<u64>())
}

fn identity(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_tags_are_refused() {
        for bad in ["", "a\nb", "a\u{0}", "\u{7f}", &"x".repeat(513)] {
            assert!(check(bad).unwrap_err().is_config(), "{bad:?}");
        }
        check("brand:Ölmühle {x} 100%").unwrap();
    }

    #[test]
    fn tags_spread_over_all_shards() {
        let used: std::collections::HashSet<_> =
            (0..1000).map(|n| shard_of(&format!("tag:{n}"))).collect();
        assert_eq!(used.len(), SHARDS);
    }
}
