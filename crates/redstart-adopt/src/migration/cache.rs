//! A TTL for entries that have none, and the way back.

use redis::cmd;

use super::{Kind, Migration, Progress, Tell};
use crate::error::Result;

/// Entries that are looked at in one round trip.
const PAGE: usize = 200;

/// What is known about the entries of a cache.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) all: u64,
    pub(super) bare: u64,
}

impl Migration {
    /// The keys of the cache: strings that are not ours.
    async fn keys(&self) -> Result<Vec<String>> {
        let mut keys = self.store.scan(&self.subject).await?;
        keys.retain(|key| !key.ends_with("}:fill") && !key.starts_with("redstart:adopt:"));
        Ok(keys)
    }

    /// Which of these keys are strings, and which of those have no TTL.
    async fn look_at<'a>(&self, keys: &'a [String]) -> Result<(u64, Vec<&'a str>)> {
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
                    bare.push(key.as_str());
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
    pub(super) async fn give_ttls(&self, tell: Tell<'_>) -> Result<u64> {
        let touched = self.record.part("touched");
        let keys = self.keys().await?;
        let (mut seen, mut changed) = (0, 0);
        for page in keys.chunks(PAGE) {
            let (_, bare) = self.look_at(page).await?;
            if !bare.is_empty() {
                // Noted first: what is interrupted here can be taken back.
                let () = self
                    .store
                    .query(cmd("SADD").arg(&touched).arg(&bare))
                    .await?;
                let mut give = redis::pipe();
                for key in &bare {
                    // Not all at once: entries that end together are missed together.
                    let ttl = self.ttl.mul_f64(1.0 - rand::random::<f64>() / 10.0);
                    let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX >> 12);
                    give.cmd("PEXPIRE").arg(key).arg(ms.max(1)).arg("NX");
                }
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

    /// Takes the TTL of those entries away again; returns how many had one.
    pub(super) async fn take_ttls_back(&self, tell: Tell<'_>) -> Result<u64> {
        if self.kind != Kind::Cache {
            return Ok(0);
        }
        let touched = self.record.part("touched");
        let total: u64 = self.store.query(cmd("SCARD").arg(&touched)).await?;
        let (mut seen, mut changed) = (0, 0);
        loop {
            let page = cmd("SRANDMEMBER").arg(&touched).arg(PAGE).take();
            let keys: Vec<String> = self.store.query(&page).await?;
            if keys.is_empty() {
                return Ok(changed);
            }
            let mut take = redis::pipe();
            for key in &keys {
                take.cmd("PERSIST").arg(key);
            }
            let taken: Vec<u64> = self.store.pipeline(&take).await?;
            changed += taken.iter().sum::<u64>();
            // Forgotten last, for the same reason.
            let () = self
                .store
                .query(cmd("SREM").arg(&touched).arg(&keys))
                .await?;
            seen += keys.len() as u64;
            tell(Progress {
                what: "entries",
                done: seen,
                total,
            });
        }
    }
}
