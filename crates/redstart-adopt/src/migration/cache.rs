//! A TTL for entries that have none, and the way back.

use std::{collections::BTreeMap, time::Duration};

use redis::cmd;

use super::{Alone, Kind, Migration, Progress, Tell};
use crate::{
    budget::Budget,
    error::Result,
    guess::form_of,
    library::{Library, Purpose},
    pattern,
    recognise::recognise,
};

/// Entries that are looked at in one round trip.
const PAGE: usize = 200;

/// Short enough to be sent as it is, so that a page is one round trip on every node.
const TAKE_BACK: &str = include_str!("cache/take_back.lua");

/// The bytes of a value that show its form.
const HEAD: u64 = 1024;

/// The entries of a cache.
#[derive(Default)]
pub(super) struct Entries {
    /// Those with a TTL.
    pub(super) ending: u64,
    /// Those without one.
    pub(super) bare: Vec<Vec<u8>>,
    /// Keys that the pattern matches and that are no entries.
    pub(super) left_out: u64,
}

impl Migration {
    /// The keys whose names are those of entries and that no other library owns, and how many others the pattern matches.
    async fn names(&self) -> Result<(Vec<Vec<u8>>, u64)> {
        let glob = pattern::glob(&self.subject);
        let mut keys = self.store.sample(&glob, usize::MAX).await?;
        keys.retain(|key| !key.ends_with(b"}:fill") && !key.starts_with(b"redstart:adopt:"));
        let all = keys.len();
        let known = recognise(&self.store, &Budget::default().matching(&glob)).await?;
        let is_django = known
            .of(Library::DjangoCache)
            .any(|one| one.subject == self.subject);
        if !is_django {
            keys.retain(|key| pattern::matches_parts(self.subject.as_bytes(), key));
            // As in the plan: words are not entries beside ids, unless there are many of them. What is no text is no word.
            let (ids, words): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| {
                std::str::from_utf8(key).is_err() || pattern::of(key) == self.subject
            });
            keys = ids;
            if keys.is_empty() || words.len() >= pattern::MANY {
                keys.extend(words);
            }
        }
        keys.retain(|key| {
            let owner = known.owner(key).map(|owner| owner.library.purpose());
            owner.is_none_or(|owner| owner == Purpose::Cache)
        });
        let left_out = all - keys.len();
        Ok((keys, left_out as u64))
    }

    /// Which of these keys are strings, and which of those have no TTL.
    async fn look_at<'a>(&self, keys: &'a [Vec<u8>]) -> Result<(u64, Vec<&'a [u8]>)> {
        let mut look = redis::pipe();
        for key in keys {
            look.cmd("TYPE").arg(key);
            look.cmd("PTTL").arg(key);
        }
        let replies: Vec<redis::Value> = self.store.pipeline(&look).await?;
        let (mut strings, mut bare) = (0, Vec::new());
        for (key, reply) in keys.iter().zip(replies.chunks(2)) {
            let kind: String = redis::from_redis_value(reply[0].clone())?;
            let left: i64 = redis::from_redis_value(reply[1].clone())?;
            if kind == "string" {
                strings += 1;
                if left == -1 {
                    bare.push(key.as_slice());
                }
            }
        }
        Ok((strings, bare))
    }

    /// What each of these strings is, by its first bytes. `None` for a number, which may be a counter.
    async fn forms(&self, keys: &[&[u8]]) -> Result<Vec<Option<&'static str>>> {
        let mut look = redis::pipe();
        look.ignore_errors();
        for key in keys {
            look.cmd("GETRANGE").arg(key).arg(0).arg(HEAD);
        }
        let heads: Vec<redis::Value> = self.store.pipeline(&look).await?;
        let form = |head: redis::Value| {
            // It may have become something else meanwhile.
            let head: Vec<u8> = redis::from_redis_value(head).ok()?;
            let is_whole = head.len() as u64 <= HEAD;
            let number = std::str::from_utf8(&head).is_ok_and(|text| text.parse::<f64>().is_ok());
            (!number).then(|| form_of(&head, is_whole).unwrap_or("others"))
        };
        Ok(heads.into_iter().map(form).collect())
    }

    /// Looks for the entries. Only reads.
    pub(super) async fn entries(&self) -> Result<Entries> {
        let (names, left_out) = self.names().await?;
        let (mut ending, mut others) = (0, left_out);
        let mut by_form: BTreeMap<&str, Vec<Vec<u8>>> = BTreeMap::new();
        for page in names.chunks(PAGE) {
            let (strings, bare) = self.look_at(page).await?;
            ending += strings - bare.len() as u64;
            others += page.len() as u64 - strings;
            for (key, form) in bare.iter().zip(self.forms(&bare).await?) {
                match form {
                    Some(form) => by_form.entry(form).or_default().push(key.to_vec()),
                    None => others += 1,
                }
            }
        }
        // Most of them have the form that the plan showed.
        let most = by_form.iter().max_by_key(|(_, keys)| keys.len());
        let most = most.map(|(form, _)| *form).unwrap_or_default();
        let bare = by_form.remove(most).unwrap_or_default();
        others += by_form.values().map(|keys| keys.len() as u64).sum::<u64>();
        Ok(Entries {
            ending,
            bare,
            left_out: others,
        })
    }

    /// Gives entries without a TTL one; returns how many.
    pub(super) async fn give_ttls(&self, alone: &Alone, tell: Tell<'_>) -> Result<u64> {
        let touched = self.record.part("touched");
        let keys = self.entries().await?.bare;
        let (mut seen, mut changed) = (0, 0);
        for page in keys.chunks(PAGE) {
            let (_, bare) = self.look_at(page).await?;
            if !bare.is_empty() {
                alone.check().await?;
                let now = self.store.time().await?;
                let (mut note, mut give) = (cmd("HSET"), redis::pipe());
                note.arg(&touched);
                for key in &bare {
                    // Not all at once: entries that end together are missed together.
                    let ttl = self.ttl.mul_f64(1.0 - rand::random::<f64>() / 10.0);
                    let at = now.saturating_add(ttl.max(Duration::from_millis(1)));
                    let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX >> 12);
                    note.arg(key).arg(at);
                    give.cmd("PEXPIREAT").arg(key).arg(at).arg("NX");
                }
                // Noted first: what is interrupted here can be taken back.
                let _: u64 = self.store.query(&note).await?;
                let given: Vec<u64> = self.store.pipeline(&give).await?;
                changed += given.iter().sum::<u64>();
            }
            seen += page.len() as u64;
            tell(Progress {
                what: "entries",
                done: seen,
                total: keys.len() as u64,
            });
        }
        Ok(changed)
    }

    /// Takes the TTL that they were given away from those entries that still have it; returns how many.
    pub(super) async fn take_ttls_back(&self, alone: &Alone, tell: Tell<'_>) -> Result<u64> {
        if self.kind != Kind::Cache {
            return Ok(0);
        }
        let touched = self.record.part("touched");
        let total: u64 = self.store.query(cmd("HLEN").arg(&touched)).await?;
        let (mut cursor, mut seen, mut changed) = (0_u64, 0, 0);
        loop {
            let page = cmd("HSCAN")
                .arg(&touched)
                .arg(cursor)
                .arg("COUNT")
                .arg(PAGE)
                .take();
            let (next, given): (u64, Vec<Vec<u8>>) = self.store.query(&page).await?;
            for given in given.chunks(2 * PAGE) {
                alone.check().await?;
                let mut take = redis::pipe();
                let mut forget = cmd("HDEL");
                forget.arg(&touched);
                for one in given.chunks_exact(2) {
                    take.cmd("EVAL")
                        .arg(TAKE_BACK)
                        .arg(1)
                        .arg(&one[0])
                        .arg(&one[1]);
                    forget.arg(&one[0]);
                }
                let taken: Vec<u64> = self.store.pipeline(&take).await?;
                changed += taken.iter().sum::<u64>();
                // Forgotten last, for the same reason.
                let _: u64 = self.store.query(&forget).await?;
                seen += taken.len() as u64;
                tell(Progress {
                    what: "entries",
                    done: seen,
                    total,
                });
            }
            cursor = next;
            if cursor == 0 {
                return Ok(changed);
            }
        }
    }
}
