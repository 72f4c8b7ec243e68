//! Dead letters: writes that cannot be applied, and what an operator does with them.
//!
//! A letter lies under its key and its position in the log, so letters may be stored in any order and any number
//! of times. `dead` is a sorted set of these names, for pages and for all letters of a key; `letters` is a hash of
//! their contents; `blocked` has the first dead write of each key.

use redis::FromRedisValue;
use serde::{Serialize, de::DeserializeOwned};

use super::{Sink, WriteBehind, batch::Letter, sink::EntryId, value_part};
use crate::{
    caching::cache::CacheKey,
    codec::Codec,
    error::{Error, Result},
    key::Entity,
    observe,
    script::Script,
    store::Store,
};

pub(crate) static BURY: Script = Script::new("write_behind.bury", include_str!("bury.lua"));
pub(crate) static UNBURY: Script = Script::new("write_behind.unbury", include_str!("unbury.lua"));

/// How many letters one script call stores, and removes.
const STORED: usize = 100;
const CHUNK: usize = 500;

/// A write that could not be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadWrite {
    /// The key's name.
    pub key: String,
    /// Its position in the log.
    pub id: EntryId,
    /// Why it cannot be applied.
    pub reason: String,
}

/// The length of the key comes first, so that the letters of one key are a range that no other key is in.
fn prefix(key: &str) -> String {
    format!("{:04}{key}", key.len())
}

fn member(key: &str, id: EntryId) -> String {
    format!("{}{}", prefix(key), id.padded())
}

fn parse_member(member: &str) -> Option<(String, EntryId)> {
    let length: usize = member.get(..4)?.parse().ok()?;
    let key = member.get(4..4 + length)?;
    Some((key.to_owned(), member.get(4 + length..)?.parse().ok()?))
}

/// Stores letters and blocks their keys. Storing a letter twice changes nothing.
pub(super) async fn bury(store: &Store, shard: &Entity, letters: &[Letter]) -> Result<()> {
    observe::events("write_behind.dead_letter", letters.len() as u64);
    for chunk in letters.chunks(STORED) {
        let mut call = BURY.on(shard).part("dead").part("letters").part("blocked");
        for Letter { entry, reason } in chunk {
            let content = [reason.replace('\n', " ").as_bytes(), b"\n", &entry.bytes].concat();
            call = call
                .arg(&entry.key)
                .arg(entry.id.padded())
                .arg(member(&entry.key, entry.id))
                .arg(content);
        }
        call.idempotent().run::<u64>(store).await?;
    }
    Ok(())
}

impl<K, V, S, C> WriteBehind<K, V, S, C>
where
    K: CacheKey + ?Sized,
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
    S: Sink<V>,
    C: Codec,
{
    /// Up to `count` writes that could not be applied, in the order of shard, key and position.
    ///
    /// Pass the last one of a page as `after` to get the next page. Letters that are added or removed meanwhile do
    /// not disturb the order: what stays is seen exactly once.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn dead_writes(
        &self,
        after: Option<&DeadWrite>,
        count: usize,
    ) -> Result<Vec<DeadWrite>> {
        let shared = &self.shared;
        observe::operation("write_behind.dead_writes", &shared.namespace, async {
            let mut found = Vec::new();
            let (first, mut from) = match after {
                Some(last) => (
                    self.shard_number(&last.key)?,
                    format!("({}", member(&last.key, last.id)),
                ),
                None => (0, "-".to_owned()),
            };
            for shard in &shared.shards[first..] {
                while found.len() < count {
                    let mut page = redis::cmd("ZRANGEBYLEX");
                    page.arg(shard.part("dead"))
                        .arg(&from)
                        .arg("+")
                        .arg("LIMIT")
                        .arg(0)
                        .arg((count - found.len()).min(CHUNK));
                    let members: Vec<String> = shared.store.query(&page).await?;
                    let Some(last) = members.last() else { break };
                    from = format!("({last}");
                    let mut contents = redis::cmd("HMGET");
                    contents.arg(shard.part("letters")).arg(&members);
                    let contents: Vec<Option<Vec<u8>>> = shared.store.query(&contents).await?;
                    let letters = members
                        .iter()
                        .zip(contents)
                        .filter_map(|(member, content)| {
                            // Gone between the two reads.
                            let content = content?;
                            let reason = content.split(|byte| *byte == b'\n').next()?;
                            let (key, id) = parse_member(member)?;
                            Some(DeadWrite {
                                key,
                                id,
                                reason: String::from_utf8_lossy(reason).into_owned(),
                            })
                        });
                    found.extend(letters);
                }
                if found.len() >= count {
                    break;
                }
                "-".clone_into(&mut from);
            }
            Ok(found)
        })
        .await
    }

    /// Writes the newest dead letter of a key again, drops its older ones, and unblocks the key. Returns how many
    /// letters there were.
    ///
    /// If a newer write of the key waits in the log, that one counts: the letters are dropped and nothing is
    /// written again.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the letters but the newest may be gone, and the key may still be blocked.
    /// Call it again.
    pub async fn retry_dead(&self, key: &K) -> Result<u64> {
        self.unbury(key, "retry").await
    }

    /// Drops the dead letters of a key, and its cached value if that is one of them, and unblocks the key. Returns
    /// how many letters there were.
    ///
    /// # Errors
    ///
    /// Those of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, any of the letters may be gone, and the key may still be blocked. Call it again.
    pub async fn discard_dead(&self, key: &K) -> Result<u64> {
        self.unbury(key, "discard").await
    }

    async fn unbury(&self, key: &K, verb: &str) -> Result<u64> {
        let name = key.name();
        let shared = &self.shared;
        observe::operation("write_behind.unbury", &shared.namespace, async {
            let (mut total, mut after) = (0, String::new());
            loop {
                let Unburied {
                    letters,
                    more,
                    searched,
                } = UNBURY
                    .on(self.shard(&name)?)
                    .part("dead")
                    .part("letters")
                    .part("blocked")
                    .part("log")
                    .part(&value_part(&name))
                    .arg(&*name)
                    .arg(prefix(&name))
                    .arg(verb)
                    .arg(CHUNK)
                    .arg(&after)
                    .run(&shared.store)
                    .await?;
                total += letters;
                after = searched;
                if !more {
                    return Ok(total);
                }
            }
        })
        .await
    }
}

struct Unburied {
    letters: u64,
    more: bool,
    /// Up to which entry the log was searched for a newer write.
    searched: String,
}

impl FromRedisValue for Unburied {
    fn from_redis_value(value: redis::Value) -> Result<Self, redis::ParsingError> {
        let (letters, more, searched) = redis::from_redis_value(value)?;
        Ok(Self {
            letters,
            more,
            searched,
        })
    }
}

/// Only for the message of an id that the log gave.
pub(super) fn parse_id(text: &str) -> Result<EntryId> {
    text.parse()
        .map_err(|_| Error::codec("invalid entry id in reply"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn letters_of_a_key_are_one_range(key in ".{1,20}", other in ".{1,20}", ms in any::<u64>(), n in any::<u64>()) {
            let id = EntryId { ms, n };
            prop_assert_eq!(parse_member(&member(&key, id)), Some((key.clone(), id)));
            let shared = member(&other, id).starts_with(&prefix(&key));
            prop_assert_eq!(shared, key == other);
        }
    }
}
