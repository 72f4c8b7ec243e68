//! Whether the engine and the server have the same: keys while they are used, and the last ones while writes are held back.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{
    super::{
        HandoverStep,
        compare::{self, PAGE, differing},
    },
    Work,
};
use crate::error::{Error, Result};

/// Up to `FEW` keys, or `SHORT` of comparing, while writes are paused.
const FEW: usize = 1000;
const SHORT: Duration = Duration::from_millis(100);
/// How often changed keys are compared before writes are held back in any case.
const ROUNDS: usize = 30;
/// The same if as many keys change meanwhile as are compared.
const VAIN_ROUNDS: usize = 3;
/// Every so many pages of keys, those that changed are asked for: the engine keeps a limited number of them.
const PAGES: usize = 16;
/// How often all keys are compared, if more change than the engine notes.
const SCANS: usize = 3;
/// How many changed keys the engine is asked for at a time.
const CHANGED: usize = 10_000;
/// More suspects than this are compared again during the scan.
const MANY: usize = 200_000;
/// How often keys that differ are looked at again: one may have expired between two looks.
const LOOKS: usize = 20;

impl Work<'_> {
    /// Compares all keys while they are used. Those that may differ are left.
    pub(super) async fn compare_all(&mut self) -> Result<BTreeSet<Vec<u8>>> {
        let mut suspects = BTreeSet::new();
        for _ in 0..SCANS {
            let noted = self.plan.noted.to_string();
            self.request("WATCH", &[&noted]).await?;
            self.compare_each(&mut suspects).await?;
            suspects = self.compare_changed(suspects).await?;
            if !std::mem::take(&mut self.missed) {
                return Ok(suspects);
            }
            tracing::info!("more keys changed than the engine notes: all are compared again");
        }
        Err(Error::unavailable(
            "more keys change at a time than the engine notes: try again when less is written",
        ))
    }

    /// Compares the keys that changed, until few are left, or as many change meanwhile.
    async fn compare_changed(
        &mut self,
        mut suspects: BTreeSet<Vec<u8>>,
    ) -> Result<BTreeSet<Vec<u8>>> {
        let (mut last, mut vain, mut short) = (usize::MAX, 0, FEW);
        for _ in 0..ROUNDS {
            self.take_changed(&mut suspects).await?;
            let count = suspects.len();
            vain = if count < last / 10 * 9 { 0 } else { vain + 1 };
            if self.missed || count <= short || vain == VAIN_ROUNDS {
                break;
            }
            let begun = Instant::now();
            suspects = self.still_differing(suspects).await?;
            // How many keys are compared in a short time.
            let part = SHORT.as_secs_f64() / begun.elapsed().as_secs_f64().max(1e-6);
            short = FEW.max((count as f64 * part) as usize);
            last = count;
        }
        Ok(suspects)
    }

    /// Compares each key once.
    async fn compare_each(&mut self, suspects: &mut BTreeSet<Vec<u8>>) -> Result<()> {
        let databases = self.from.info("keyspace").await?.databases();
        let all: u64 = databases.iter().map(|(_, keys)| keys).sum();
        let mut done = 0;
        for (db, _) in databases {
            let mut cursor = "0".to_owned();
            for number in 1_usize.. {
                let count = PAGE.to_string();
                let page = self
                    .from
                    .ask(db, &["SCAN", &cursor, "COUNT", &count])
                    .await?;
                let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(page)?;
                let ahead = self.clock_ahead_micros;
                suspects.extend(differing(&mut self.from, &mut self.to, ahead, db, &keys).await?);
                done += keys.len() as u64;
                self.tell(&HandoverStep::Comparing(done.min(all), all));
                self.go_on().await?;
                if number.is_multiple_of(PAGES) {
                    self.take_changed(suspects).await?;
                    if suspects.len() > MANY {
                        *suspects = self.still_differing(std::mem::take(suspects)).await?;
                    }
                }
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        self.keys = done;
        Ok(())
    }

    /// Adds the keys that changed since they were last asked for.
    async fn take_changed(&mut self, suspects: &mut BTreeSet<Vec<u8>>) -> Result<()> {
        // As many as the engine can have noted: while writes are held back, these are all. Before that, keys that change all
        // the time would have no end.
        for _ in 0..=self.plan.noted / CHANGED {
            let reply = self.request("CHANGED", &[&CHANGED.to_string()]).await?;
            let mut items = reply.into_sequence().unwrap_or_default().into_iter();
            match items.next() {
                Some(redis::Value::Int(1)) => {
                    return Err(Error::unavailable(
                        "databases were emptied or swapped during the comparison: try again",
                    ));
                }
                Some(redis::Value::Int(2)) => self.missed = true,
                _ => {}
            }
            let mut count = 0;
            for item in items {
                suspects.insert(redis::from_redis_value(item)?);
                count += 1;
            }
            if count < CHANGED {
                break;
            }
        }
        Ok(())
    }

    /// Those of the keys that differ, in any database: a change names its key only.
    async fn still_differing(&mut self, keys: BTreeSet<Vec<u8>>) -> Result<BTreeSet<Vec<u8>>> {
        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let (from, to) = (
            self.from.info("keyspace").await?,
            self.to.info("keyspace").await?,
        );
        let databases: BTreeSet<i64> = from
            .databases()
            .into_iter()
            .chain(to.databases())
            .map(|(db, _)| db)
            .collect();
        let mut different = BTreeSet::new();
        for db in databases {
            for keys in keys.chunks(PAGE * PAGES) {
                self.go_on().await?;
                let ahead = self.clock_ahead_micros;
                different.extend(differing(&mut self.from, &mut self.to, ahead, db, keys).await?);
            }
        }
        Ok(different)
    }

    /// Compares what changed since it was compared. What still differs now is different.
    pub(super) async fn compare_last(&mut self, mut suspects: BTreeSet<Vec<u8>>) -> Result<()> {
        self.take_changed(&mut suspects).await?;
        if self.missed {
            return Err(Error::unavailable(
                "more keys changed before the pause than the engine notes: try again when less is written",
            ));
        }
        self.keys_in_pause = suspects.len() as u64;
        for _ in 0..LOOKS {
            suspects = self.still_differing(suspects).await?;
            if suspects.is_empty() {
                return Ok(());
            }
            self.check_pause()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let few = suspects.iter().take(3);
        let names: Vec<String> = few
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect();
        Err(Error::codec(format!(
            "{} keys differ between the engine and the server, such as {}",
            suspects.len(),
            names.join(", ")
        )))
    }

    /// Compares the number of keys. Keys may expire, but none is added.
    pub(super) async fn compare_sizes(&mut self) -> Result<()> {
        for _ in 0..LOOKS {
            let before = self.from.info("keyspace").await?.databases();
            let there = self.to.info("keyspace").await?.databases();
            let after = self.from.info("keyspace").await?.databases();
            let size = |of: &[(i64, u64)], db: i64| {
                of.iter()
                    .find(|(other, _)| *other == db)
                    .map_or(0, |(_, keys)| *keys)
            };
            let all = before.iter().chain(&there).map(|(db, _)| *db);
            let fits = |db: i64| (size(&after, db)..=size(&before, db)).contains(&size(&there, db));
            if all.clone().all(fits) {
                return Ok(());
            }
            self.check_pause()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(Error::codec(
            "the engine and the server have different numbers of keys",
        ))
    }

    pub(super) async fn compare_functions(&mut self) -> Result<()> {
        let list = ["FUNCTION", "LIST", "WITHCODE"];
        let (here, there) = (self.from.ask(0, &list).await?, self.to.ask(0, &list).await?);
        match compare::sorted(here) == compare::sorted(there) {
            true => Ok(()),
            false => Err(Error::codec(
                "the engine and the server have different functions",
            )),
        }
    }
}
