//! What each step looks at before it is done. Only reads.

use std::{collections::BTreeMap, time::Duration};

use base64::Engine as _;
use redis::cmd;

use super::{Kind, Migration, Progress, StepReport, Tell};
use crate::{
    bullmq::BullQueue,
    error::{Error, Result},
    inspect::{Inspector, Overview},
    library::Library,
    lock::{HeldBy, holder},
    pattern,
    sessions::session_data,
    sidekiq::{Sidekiq, parts_of},
    text::printable,
};

/// Values that are read in one round trip.
const PAGE: usize = 200;

/// The findings of one kind that are listed.
const LISTED: usize = 10;

impl Migration {
    /// What the step would find and change.
    pub(super) async fn check(&self, step: &'static str) -> Result<StepReport> {
        let mut report = StepReport::new(step);
        match self.kind {
            Kind::BullMq => self.check_bullmq(&mut report).await?,
            Kind::Sidekiq => {
                let overview = self.overview(Library::Sidekiq).await?;
                report.found.push(counts(&overview));
            }
            Kind::Locks => self.check_locks(&mut report).await?,
            Kind::Limiter => self.check_limiter(&mut report).await?,
            Kind::Sessions => self.check_sessions(&mut report).await?,
            Kind::Cache => {
                let entries = self.entries().await?;
                let bare = entries.bare.len() as u64;
                report.found.push(format!(
                    "{} entries, {bare} of them without a TTL",
                    entries.ending + bare
                ));
                if entries.left_out > 0 {
                    report.found.push(format!(
                        "{} keys are left out: their names or values are not those of entries, or a library owns them",
                        entries.left_out
                    ));
                }
                if step == "share" && bare > 0 {
                    if !self.is_declared {
                        return Err(Error::invalid(format!(
                            "{bare} entries have no TTL and may be the only copy of their data: if each can be computed again, say that it is a cache (--as cache)"
                        )));
                    }
                    let ttl = self.ttl.as_secs_f64();
                    report
                        .changes
                        .push(format!("gives {bare} entries a TTL of up to {ttl} s"));
                }
            }
        }
        Ok(report)
    }

    async fn overview(&self, library: Library) -> Result<Overview> {
        Inspector::new(&self.store, library, &self.subject)?
            .overview()
            .await
    }

    pub(super) fn bull_queue(&self) -> Result<BullQueue> {
        let (prefix, name) = self.bull_name()?;
        BullQueue::builder(&self.store, name).prefix(prefix).build()
    }

    fn bull_name(&self) -> Result<(&str, &str)> {
        let parts = self.subject.rsplit_once(':');
        parts.ok_or_else(|| Error::invalid("a queue of BullMQ is named with its prefix: bull:mail"))
    }

    /// The Sidekiq of the subject, and the name of its queue.
    pub(super) fn sidekiq(&self) -> Result<(Sidekiq, &str)> {
        let (namespace, queue) = parts_of(&self.subject).ok_or_else(|| {
            Error::invalid("a queue of Sidekiq is named with its key: queue:default")
        })?;
        let sidekiq = Sidekiq::of_any_version(&self.store);
        Ok((sidekiq.namespace(namespace.trim_end_matches(':')), queue))
    }

    async fn check_bullmq(&self, report: &mut StepReport) -> Result<()> {
        let overview = self.overview(Library::BullMq).await?;
        report.found.push(counts(&overview));
        let versions = self.bull_queue()?.versions().await?;
        if let Some(declared) = &versions.declared {
            let declared = printable(declared);
            report.found.push(format!("declares version {declared}"));
        }
        if ["drain", "switch"].contains(&report.step) {
            let repeat = format!("{}:repeat", self.subject);
            let schedulers: u64 = self.store.query(cmd("ZCARD").arg(repeat)).await?;
            if schedulers > 0 {
                report.blocked = Some(format!(
                    "the queue has {schedulers} job schedulers, which Node goes on with: move them first"
                ));
                return Ok(());
            }
        }
        match report.step {
            "share" if versions.is_mixed() && versions.paused => {
                report
                    .found
                    .push("paused, and written to by two versions".to_owned());
                if versions.in_wait > 0 {
                    report.changes.push(format!(
                        "moves {} jobs that a pause or resume by version 5 would lose to the list that it keeps",
                        versions.in_wait
                    ));
                }
            }
            "share" if versions.is_mixed() => report.changes.push(format!(
                "moves {} jobs that only version 5 looks for to where all workers look",
                versions.in_paused
            )),
            "drain" => match self.node_workers().await? {
                0 if self.store.is_cluster() => report.found.push(
                    "no Node worker is connected to one of the nodes; make sure that none runs"
                        .to_owned(),
                ),
                0 => report.found.push("no Node worker is connected".to_owned()),
                workers => {
                    report.blocked = Some(format!(
                        "{workers} Node workers are connected: stop them one at a time"
                    ));
                }
            },
            "switch" => {
                let unfinished = overview
                    .states
                    .iter()
                    .filter(|state| !["completed", "failed"].contains(&state.name));
                let left: u64 = unfinished.map(|state| state.count).sum();
                if left > 0 {
                    report.blocked = Some(format!("{left} jobs are not finished"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How many workers of Node wait for jobs of the queue, by the names of their connections.
    async fn node_workers(&self) -> Result<u64> {
        let (prefix, name) = self.bull_name()?;
        let name = base64::engine::general_purpose::STANDARD.encode(name);
        let name = format!("{prefix}:{name}");
        let clients: String = self.store.query(cmd("CLIENT").arg("LIST")).await?;
        let is_worker = |line: &&str| {
            let names = line
                .split(' ')
                .filter_map(|word| word.strip_prefix("name="));
            // A worker may have a name of its own; QueueEvents is not a worker.
            names
                .filter_map(|client| client.strip_prefix(&name))
                .any(|rest| rest.is_empty() || rest.starts_with(":w:"))
        };
        Ok(clients.lines().filter(is_worker).count() as u64)
    }

    /// Waits until no Node worker is connected, or as long as it may.
    pub(super) async fn wait_for_node(&self, tell: Tell<'_>) -> Result<()> {
        let until = tokio::time::Instant::now().checked_add(self.wait);
        let mut most = 0;
        loop {
            let left = self.node_workers().await?;
            most = most.max(left);
            tell(Progress {
                what: "Node workers stopped",
                done: most - left,
                total: most,
            });
            if left == 0 || until.is_some_and(|until| tokio::time::Instant::now() >= until) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// All keys of the pattern: a sample would miss the one that matters.
    async fn all(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self
            .store
            .sample(&pattern::glob(&self.subject), usize::MAX)
            .await?)
    }

    /// Reads the values of all keys of the pattern, and how many `is_good` takes for what they should be: those that are, and those that are not.
    async fn judge(&self, is_good: impl Fn(&[u8]) -> bool) -> Result<(u64, u64)> {
        let (mut good, mut odd) = (0, 0);
        for page in self.all().await?.chunks(PAGE) {
            let mut look = redis::pipe();
            look.ignore_errors();
            for key in page {
                look.cmd("GET").arg(key);
            }
            let replies: Vec<redis::Value> = self.store.pipeline(&look).await?;
            for reply in replies {
                if let redis::Value::ServerError(error) = reply {
                    if error.code() != "WRONGTYPE" {
                        return Err(redstart::Error::from(redis::RedisError::from(error)).into());
                    }
                    odd += 1;
                    continue;
                }
                match redis::from_redis_value::<Option<Vec<u8>>>(reply)? {
                    Some(value) if is_good(&value) => good += 1,
                    Some(_) => odd += 1,
                    // It ended meanwhile.
                    None => {}
                }
            }
        }
        Ok((good, odd))
    }

    async fn check_locks(&self, report: &mut StepReport) -> Result<()> {
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        let (mut others, mut bare) = (0, 0);
        for key in self.all().await? {
            // The counters of fence tokens lie beside the locks.
            if key.ends_with(b"}:fence") {
                continue;
            }
            let Some(blocker) = holder(&self.store, &key).await? else {
                continue;
            };
            *kinds.entry(blocker.by.to_string()).or_default() += 1;
            others += u64::from(blocker.by != HeldBy::Redstart);
            if blocker.remaining.is_none() {
                bare += 1;
                if bare <= LISTED {
                    let key = String::from_utf8_lossy(&key);
                    report.found.push(format!("{}: {blocker}", printable(&key)));
                }
            }
        }
        if kinds.is_empty() {
            report.found.push("no lock is held".to_owned());
        }
        for (kind, count) in kinds {
            report.found.push(format!("{count} held by {kind}"));
        }
        if report.step == "switch" && others > 0 {
            report.blocked = Some(format!("{others} locks are held by others"));
        }
        Ok(())
    }

    async fn check_limiter(&self, report: &mut StepReport) -> Result<()> {
        let is_counter = |value: &[u8]| {
            std::str::from_utf8(value).is_ok_and(|number| number.parse::<i64>().is_ok())
        };
        let (counters, odd) = self.judge(is_counter).await?;
        report.found.push(format!("{counters} counters"));
        if odd > 0 {
            report.blocked = Some(format!("{odd} keys are no counters"));
        }
        Ok(())
    }

    async fn check_sessions(&self, report: &mut StepReport) -> Result<()> {
        let (read, odd) = self.judge(|json| session_data(json).is_some()).await?;
        report.found.push(format!("{read} sessions can be read"));
        if odd > 0 {
            report.blocked = Some(format!("{odd} values are no sessions of express-session"));
        }
        Ok(())
    }
}

fn counts(overview: &Overview) -> String {
    let counts = overview.states.iter().filter(|state| state.count > 0);
    let counts: Vec<String> = counts
        .map(|state| format!("{} {}", state.count, state.name))
        .collect();
    match counts.is_empty() {
        true => "no jobs".to_owned(),
        false => counts.join(", "),
    }
}
