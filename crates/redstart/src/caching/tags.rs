//! Tags: many entries invalidated by one command.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::Pipeline;
use tokio::time::Instant;

use super::cache::entry::TagStamp;
use crate::{
    duration::millis,
    error::{Error, Result},
    key::{Entity, Keys},
    script::{Batch, Script},
    store::Store,
};

const SHARDS: usize = 16;
/// How finely the first level tells tags apart.
pub(crate) const BUCKETS: u16 = 4096;
/// The part of the first shard's key that is touched when everything was cleared.
const ALL: &str = "clear";
const MAX_TAG: usize = 512;
const MAX_TAGS: usize = 10_000;
/// Longer than most entries are kept; an entry that outlives its shard is a miss.
const SHARD_TTL: Duration = Duration::from_secs(60 * 24 * 3600);
/// How long the counts of one load serve for others.
const SNAPSHOT_SERVES: Duration = Duration::from_millis(100);

pub(crate) static SEED: Script = Script::new("cache.seed_tags", include_str!("tags/seed.lua"));
pub(crate) static BUMP: Script = Script::new(
    "cache.invalidate_tag",
    concat!(
        include_str!("../script/now.lua"),
        include_str!("tags/bump.lua")
    ),
);
pub(crate) static INDEX: Script = Script::new("cache.index_tag", include_str!("tags/index.lua"));
pub(crate) static CLEAR: Script = Script::new("cache.clear", include_str!("tags/clear.lua"));

/// How the entries of a tag are found.
///
/// Each cache has 16 tag shards, each a sorted set in the store:
///
/// | member | score |
/// |---|---|
/// | `#id` | minus a random number, drawn when the shard was created |
/// | `#n` | minus the number of the last invalidation |
/// | `#floor` | minus the greatest number of a forgotten tag |
/// | `t:<tag>` | the number of the tag's last invalidation |
///
/// Before a value is loaded, `#id` and `#n` of the shards are read. The entry keeps, for each of its tags,
/// what its shard had then. At a read it is good only if the shard has the same identity and the tag's last
/// invalidation is not after that number. So
///
/// - invalidating a tag is one small script, however many entries carry it;
/// - a tag that the loader learns only from the row is safe: the number was read before the row;
/// - a shard that was evicted or flushed is created again with another identity: its entries are misses, and nothing
///   that was invalidated is served again;
/// - no clock decides: an invalidation has a greater number than the last one, and at least the server's time in
///   microseconds. After a failover that lost invalidations, the next ones are numbered higher than those that were lost, if
///   the new server's clock is not behind by more than the failover took.
///
/// A shard remembers the 10,000 tags that were invalidated last. Of a forgotten tag only the floor is left: entries
/// that were loaded before that invalidation, and carry a tag that the shard does not know, are misses.
///
/// The counts that were read for one load serve for others that start within 100 ms. An older count is safe: at worst
/// a value that was loaded after an invalidation is taken for one from before it, and is loaded once more.
///
/// With [`Tags::Index`] a set of keys for each tag is kept too, so that the entries of a tag are found at once and an
/// invalidation frees their memory; it costs one more round trip per load. The counts decide in both modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tags {
    /// Counts only: an invalidated entry is a miss when it is read, and its memory is freed by its TTL.
    #[default]
    Version,
    /// Counts, and a set of keys for each tag: entries can be listed, and are removed at once.
    Index,
}

/// Identity and count of each shard before a load.
pub(crate) type Snapshot = [(u64, u64); SHARDS];

fn shard_of(tag: &str) -> usize {
    usize::from(crate::key::slot(tag.as_bytes())) % SHARDS
}

/// The bucket of a tag in first levels.
pub(crate) fn bucket_of(tag: &str) -> u16 {
    (xxhash_rust::xxh3::xxh3_64(tag.as_bytes()) % u64::from(BUCKETS)) as u16
}

/// What a changed key means for a first level.
pub(crate) enum TagChange {
    Bucket(u16),
    Cleared,
}

/// Checks a tag before anything is sent.
pub(crate) fn check(tag: &str) -> Result<()> {
    if tag.is_empty() {
        return Err(Error::config("a tag must not be empty"));
    }
    if tag.len() > MAX_TAG {
        return Err(Error::config(format!(
            "a tag must have at most {MAX_TAG} bytes, not {}",
            tag.len()
        )));
    }
    if tag.chars().any(char::is_control) {
        return Err(Error::config("a tag must not contain control characters"));
    }
    Ok(())
}

/// The counts that were read last, and when the request was sent.
type Recent = Arc<Mutex<Option<(Instant, Snapshot)>>>;

/// The tag shards of one cache, or of a set of caches.
pub(crate) struct TagBook {
    mode: Tags,
    keys: Keys,
    shards: Arc<[Entity]>,
    index: Keys,
    recent: Recent,
    /// The part of the key that is touched when the cache is cleared.
    clear: String,
}

impl TagBook {
    pub(crate) fn new(namespace: &str, name: &str, mode: Tags) -> Result<Self> {
        let keys = Keys::named(namespace, "cache-tag", name)?;
        let shards = (0..SHARDS)
            .map(|shard| keys.entity(&shard.to_string()))
            .collect::<Result<_>>()?;
        Ok(Self {
            mode,
            keys,
            shards,
            index: Keys::named(namespace, "cache-index", name)?,
            recent: Recent::default(),
            clear: ALL.to_owned(),
        })
    }

    /// The same shards, for one cache of a set. `name` is that of its keys, `member` that within the set.
    pub(crate) fn member(&self, name: &str, member: &str, mode: Tags) -> Result<Self> {
        Ok(Self {
            mode,
            keys: self.keys.clone(),
            shards: self.shards.clone(),
            index: Keys::named(self.keys.namespace(), "cache-index", name)?,
            recent: self.recent.clone(),
            clear: format!("{ALL}:{member}"),
        })
    }

    pub(crate) fn mode(&self) -> Tags {
        self.mode
    }

    pub(crate) fn prefix(&self) -> Option<String> {
        self.keys.prefix()
    }

    /// What the change of a key means. Scripts touch a key named after the bucket, so that a first level that hears of
    /// changed keys only knows which tags it is about.
    pub(crate) fn change_of(&self, key: &[u8]) -> Option<TagChange> {
        let key = std::str::from_utf8(key).ok()?;
        let (_, part) = key.strip_prefix(&self.keys.prefix()?)?.split_once("}:")?;
        match part {
            _ if part == ALL || part == self.clear => Some(TagChange::Cleared),
            _ => Some(TagChange::Bucket(part.strip_prefix('b')?.parse().ok()?)),
        }
    }

    /// The next load reads the counts again.
    pub(crate) fn forget_snapshot(&self) {
        *self.recent.lock() = None;
    }

    /// What all shards have now or had a moment ago; one round trip per node, and a second only the first time.
    pub(crate) async fn snapshot(&self, store: &Store) -> Result<Snapshot> {
        let sent = Instant::now();
        if let Some((at, snapshot)) = *self.recent.lock()
            && sent.duration_since(at) < SNAPSHOT_SERVES
        {
            return Ok(snapshot);
        }
        let snapshot = self.read_snapshot(store).await?;
        *self.recent.lock() = Some((sent, snapshot));
        Ok(snapshot)
    }

    async fn read_snapshot(&self, store: &Store) -> Result<Snapshot> {
        let mut pipeline = Pipeline::with_capacity(SHARDS);
        for shard in self.shards.iter() {
            pipeline
                .cmd("ZMSCORE")
                .arg(shard.key())
                .arg("#id")
                .arg("#n");
        }
        let read: Vec<(Option<f64>, Option<f64>)> = store.pipeline(&pipeline).await?;
        let mut snapshot = [(0, 0); SHARDS];
        let mut batch = Batch::new();
        let mut missing = Vec::new();
        for (at, seen) in read.into_iter().enumerate().take(SHARDS) {
            match seen {
                (Some(id), Some(count)) => snapshot[at] = (number(id), number(count)),
                _ => {
                    missing.push(at);
                    batch.push(
                        SEED.on(&self.shards[at])
                            .key()
                            .arg(fresh_identity())
                            .arg(millis(SHARD_TTL))
                            .idempotent(),
                    );
                }
            }
        }
        for (at, seeded) in missing.into_iter().zip(batch.run(store).await?) {
            let (id, count): (f64, f64) = seeded?;
            snapshot[at] = (number(id), number(count));
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

    /// For each list of stamps, whether none of its tags was invalidated since; one round trip per node for all.
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
                let cmd = pipeline.cmd("ZMSCORE").arg(shard.key());
                cmd.arg("#id").arg("#floor");
                for tag in tags {
                    cmd.arg(member(tag));
                }
            }
        }
        if pipeline.is_empty() {
            return Ok(vec![true; lists.len()]);
        }
        let replies: Vec<Vec<Option<f64>>> = store.pipeline(&pipeline).await?;
        let mut replies = replies.into_iter();
        // For each shard that was asked: its identity, its floor, and the counts of the tags.
        let now: Vec<Vec<Option<u64>>> = wanted
            .iter()
            .map(|tags| match tags.is_empty() {
                true => Vec::new(),
                false => {
                    let reply = replies.next().unwrap_or_default();
                    reply.into_iter().map(|score| score.map(number)).collect()
                }
            })
            .collect();
        let good = |stamp: &TagStamp| {
            let shard = shard_of(&stamp.tag);
            let [Some(id), floor, counts @ ..] = &now[shard][..] else {
                return false;
            };
            let at = wanted[shard].iter().position(|tag| *tag == &*stamp.tag);
            let Some(count) = at.and_then(|at| counts.get(at)) else {
                return false;
            };
            let last = count.or(*floor).unwrap_or(0);
            *id == stamp.shard_id && last <= stamp.count
        };
        Ok(lists.iter().map(|list| list.iter().all(good)).collect())
    }

    /// Makes every entry with this tag a miss.
    pub(crate) async fn bump(&self, store: &Store, tag: &str, bus: &str) -> Result<()> {
        let bumped = BUMP
            .on(&self.shards[shard_of(tag)])
            .key()
            .part(&format!("b{}", bucket_of(tag)))
            .arg(member(tag))
            .arg(fresh_identity())
            .arg(MAX_TAGS)
            .arg(millis(SHARD_TTL))
            .arg(bus)
            .arg(format!("t{tag}"))
            // Invalidating twice is the same as once.
            .idempotent()
            .run(store)
            .await;
        self.forget_snapshot();
        bumped
    }

    /// Tells first levels that everything was removed.
    pub(crate) async fn announce_clear(&self, store: &Store, bus: &str) -> Result<()> {
        CLEAR
            .on(&self.shards[0])
            .part(&self.clear)
            .arg(bus)
            .arg("c")
            .idempotent()
            .run(store)
            .await
    }

    /// Adds an entry to the sets of its tags, which live at least as long as the entry.
    pub(crate) async fn index(
        &self,
        store: &Store,
        name: &str,
        tags: &[Arc<str>],
        keep: Duration,
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
                    .arg(millis(keep.saturating_mul(2)))
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

fn member(tag: &str) -> String {
    format!("t:{tag}")
}

/// Below 2^52, so that a score has it exactly.
fn fresh_identity() -> u64 {
    crate::chance::range(1..1 << 52)
}

/// Numbers of the shard itself are negative scores, so that they come before the tags.
fn number(score: f64) -> u64 {
    score.abs() as u64
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

    #[test]
    fn a_changed_key_names_the_bucket() {
        let tags = TagBook::new("app", "product", Tags::Version).unwrap();
        let key = |part: &str| tags.shards[3].part(part).as_str().to_owned();
        let change = |key: &str| tags.change_of(key.as_bytes());
        // A cache of a set hears of its own end and of that of the whole set.
        let member = tags
            .member("product/brand", "brand", Tags::Version)
            .unwrap();
        let ends = |part: &str| member.change_of(key(part).as_bytes());
        assert!(matches!(ends("clear"), Some(TagChange::Cleared)));
        assert!(matches!(ends("clear:brand"), Some(TagChange::Cleared)));
        assert!(ends("clear:other").is_none() && change(&key("clear:brand")).is_none());
        assert!(matches!(change(&key("b77")), Some(TagChange::Bucket(77))));
        assert!(matches!(change(&key("clear")), Some(TagChange::Cleared)));
        assert!(change(tags.shards[3].key().as_str()).is_none());
        assert!(change("app:cache.product:{b7}:b7").is_none());
    }
}
