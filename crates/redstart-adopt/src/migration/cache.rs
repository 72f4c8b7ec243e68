//! A TTL for entries that have none, and the way back.

use std::time::Duration;

use redis::cmd;

use super::{Alone, Kind, Migration, Progress, Tell};
use crate::error::Result;

/// Entries that are looked at in one round trip.
const PAGE: usize = 200;

/// Short enough to be sent as it is, so that a page is one round trip on every node.
const TAKE_BACK: &str = include_str!("cache/take_back.lua");

/// What is known about the entries of a cache.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) all: u64,
    pub(super) bare: u64,
}

impl Migration {
    /// The keys of the cache: strings that are not ours.
    async fn keys(&self) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.store.sample(&self.subject, usize::MAX).await?;
        keys.retain(|key| !key.ends_with(b"}:fill") && !key.starts_with(b"redstart:adopt:"));
        Ok(keys)
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

    /// Counts the entries. Only reads.
    pub(super) async fn entries(&self) -> Result<Entries> {
        let mut entries = Entries::default();
        for page in self.keys().await?.chunks(PAGE) {
            let (strings, bare) = self.look_at(page).await?;
            entries.all += strings;
            entries.bare += bare.len() as u64;
        }
        Ok(entries)
    }

    /// Gives entries without a TTL one; returns how many.
    pub(super) async fn give_ttls(&self, alone: &Alone, tell: Tell<'_>) -> Result<u64> {
        let touched = self.record.part("touched");
        let keys = self.keys().await?;
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
