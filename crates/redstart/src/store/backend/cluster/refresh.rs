//! Reading the slot table: when it is asked for, whom, and which answer is taken.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::{Pipeline, Value};
use tokio::time::{Instant, timeout_at};

use super::{
    Cluster,
    topology::{Table, Topology},
};
use crate::{
    error::{Error, Result},
    store::{
        location::Address,
        pool::Node,
        request::{Body, Request, array},
        retry::Backoff,
    },
};

/// Pause between two readings of the table.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);
/// A task that has not reported within this time is in a runtime that does not run.
const REFRESH_REPORT: Duration = Duration::from_secs(10);
/// How long the table is read again and again because of a master that does not answer.
const REFRESH_FOR: Duration = Duration::from_secs(120);

/// One reading of the table at a time. A caller needs one that began after it asked, and those who wait share it.
#[derive(Default)]
pub(super) struct Readings {
    turn: tokio::sync::Mutex<()>,
    begun: AtomicU64,
    /// The last one that succeeded.
    done: AtomicU64,
}

#[derive(Default)]
pub(super) struct Refreshing {
    task: Option<(u64, Instant)>,
    count: u64,
    /// Asked for again while the task ran.
    again: bool,
    /// The node that is likely to know the new table.
    hint: Option<Arc<Node>>,
}

impl Cluster {
    /// Has the table read soon, by one task for everybody. While a master does not answer, it is read again and
    /// again, since a replica may take its place.
    pub(crate) fn refresh_in_background(self: &Arc<Self>, hint: Option<Arc<Node>>) {
        let now = Instant::now();
        let mut refreshing = self.refreshing.lock();
        if hint.is_some() {
            refreshing.hint = hint;
        }
        if refreshing
            .task
            .is_some_and(|(_, reports_by)| now < reports_by)
        {
            refreshing.again = true;
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        refreshing.count += 1;
        let number = refreshing.count;
        refreshing.task = Some((number, now + REFRESH_REPORT));
        drop(refreshing);
        let task = Refresher {
            cluster: Arc::downgrade(self),
            number,
        };
        crate::task::spawn_on(&runtime, task.run());
    }

    /// Reads the slot table from the node that is likely to know, or from any node that answers: the masters, then
    /// the seeds and the replicas.
    pub(super) async fn refresh(&self, hint: Option<Arc<Node>>, within: Duration) -> Result<()> {
        let known = self.topology.load_full();
        let rest = |address: &&Address| known.find(address).is_none();
        let elsewhere: Vec<Arc<Node>> = self
            .seeds
            .iter()
            .chain(known.replicas())
            .filter(rest)
            .map(|address| self.node(address))
            .collect();
        let masters = known.masters().to_vec();
        let mut failure = None;
        // What the hint alone told, and what others did.
        let (mut hinted, mut second_best) = (None, None);
        let hint: Vec<Arc<Node>> = hint.into_iter().collect();
        for (candidates, is_hint) in [(hint, true), (masters, false), (elsewhere, false)] {
            let best = match is_hint {
                true => &mut hinted,
                false => &mut second_best,
            };
            match self.refresh_from(candidates, within / 2, best).await {
                Some(Ok(())) => return Ok(()),
                // A wrong password or a wrong kind of server explains more than a node that is down.
                Some(Err(error)) if failure.is_none() || error.is_config() => {
                    failure = Some(error);
                }
                _ => {}
            }
            // One node alone does not decide while others have not been asked.
            if let Some(table) = second_best.take() {
                self.install_unless_changed(better(hinted, table), &known);
                return Ok(());
            }
        }
        if let Some(table) = hinted {
            self.install_unless_changed(table, &known);
            return Ok(());
        }
        Err(failure.unwrap_or_else(|| Error::unavailable("no node of the cluster answered")))
    }

    /// Asks these nodes at once, so that one that hangs does not hold up the others, and takes the first table. A node
    /// that says that the cluster is down may be cut off from it and know nothing of a failover, and one with an older epoch
    /// has not heard yet what is known here: the better of such tables is left in `second_best`, for the case that no other comes.
    async fn refresh_from(
        &self,
        candidates: Vec<Arc<Node>>,
        within: Duration,
        second_best: &mut Option<Table>,
    ) -> Option<Result<()>> {
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("CLUSTER").arg("SLOTS");
        questions.cmd("CLUSTER").arg("INFO");
        let within = within.max(Duration::from_millis(50));
        let deadline = Instant::now() + within;
        let hurry = self.settings.deadline.saturating_sub(within);
        let questions = &questions;
        let mut asking: FuturesUnordered<_> = candidates
            .iter()
            .map(|node| async move {
                let link = node.link();
                let request = Request::new(Body::all(questions), deadline).hurry(hurry);
                let answer = link.attempt(request).await;
                (
                    node,
                    answer.map_err(|failure| failure.into_error(|| link.place(), true)),
                )
            })
            .collect();
        let mut failure: Option<Error> = None;
        while let Some((node, answer)) = asking.next().await {
            let error = match answer.and_then(|answers| read_table(answers, node)) {
                Ok(table) if table.is_empty() => Error::unavailable(format!(
                    "{} belongs to a cluster that serves no slots",
                    node.dial().place()
                )),
                Ok(table) if table.works => match self.install_newer(table) {
                    None => return Some(Ok(())),
                    Some(older) => {
                        *second_best = Some(better(second_best.take(), older));
                        continue;
                    }
                },
                Ok(table) => {
                    *second_best = Some(better(second_best.take(), table));
                    continue;
                }
                Err(error) => {
                    let plain = error
                        .redis()
                        .is_some_and(|e| e.to_string().contains("cluster support disabled"));
                    if plain {
                        Error::config(format!(
                            "{} is not a cluster node: use redis:// for it",
                            node.dial().place()
                        ))
                    } else {
                        error
                    }
                }
            };
            if failure.is_none() || error.is_config() {
                failure = Some(error);
            }
        }
        failure.map(Err)
    }

    /// Installs a table, or gives back one that is older than what is known.
    pub(super) fn install_newer(&self, table: Table) -> Option<Table> {
        let installing = self.installing.lock();
        if self.topology.load().is_newer_than(&table) {
            return Some(table);
        }
        self.install_in_turn(table);
        drop(installing);
        None
    }

    /// Installs a table although it may be older than what was known before the nodes were asked: the cluster may have been
    /// created again. What somebody has installed meanwhile is better.
    pub(super) fn install_unless_changed(&self, table: Table, known: &Arc<Topology>) {
        let installing = self.installing.lock();
        if Arc::ptr_eq(&self.topology.load(), known) {
            self.install_in_turn(table);
        }
        drop(installing);
    }

    /// Only for who holds `installing`.
    fn install_in_turn(&self, table: Table) {
        let reader = |address: &Address| self.reader(address);
        let mut topology = Topology::new(table, |address| self.node(address), reader);
        // Links of nodes that own slots are found there; the others are few, and those that left are dropped.
        self.others.lock().retain(|node| {
            node.dial()
                .address()
                .is_some_and(|at| self.seeds.contains(at))
        });
        let changed = {
            let before = self.topology.load();
            let changed = !before.is_same(&topology);
            topology.version = before.version + u64::from(changed);
            changed
        };
        self.topology.store(Arc::new(topology));
        if changed {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Waits for a reading of the table that begins from now on, the caller's own or another's.
    pub(super) async fn read_after_now(&self, deadline: Instant) -> Result<()> {
        let readings = &self.readings;
        let before = readings.begun.load(Ordering::Acquire);
        let left = deadline.saturating_duration_since(Instant::now());
        // Who has the turn may be in a runtime that does not run.
        let patience = Instant::now() + left / 2;
        let _turn = timeout_at(patience, readings.turn.lock()).await.ok();
        if readings.done.load(Ordering::Acquire) > before {
            return Ok(());
        }
        let number = readings.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let within = deadline.saturating_duration_since(Instant::now());
        self.refresh(None, within).await?;
        readings.done.fetch_max(number, Ordering::AcqRel);
        Ok(())
    }
}

/// The table that a node gave.
fn read_table(answers: Value, node: &Node) -> Result<Table> {
    let mut answers = array(answers)?.into_iter();
    let table = answers.next().unwrap_or(Value::Nil).extract_error()?;
    // A user may not be allowed to ask for this.
    let info: String = answers
        .next()
        .and_then(|info| redis::from_redis_value(info).ok())
        .unwrap_or_default();
    Table::parse(table, &info, node.dial().address())
}

/// Of tables that are taken only if no other comes: that of a node for which the cluster works, then the one that knows more.
fn better(one: Option<Table>, other: Table) -> Table {
    let rank = |table: &Table| (table.works, table.epoch);
    match one {
        Some(one) if rank(&one) >= rank(&other) => one,
        _ => other,
    }
}

/// Reads the table in the background.
struct Refresher {
    cluster: std::sync::Weak<Cluster>,
    number: u64,
}

impl Refresher {
    async fn run(self) {
        let begun = Instant::now();
        let mut backoff = Backoff::new();
        loop {
            let Some(cluster) = self.cluster.upgrade() else {
                return;
            };
            let hint = {
                let mut refreshing = cluster.refreshing.lock();
                refreshing.again = false;
                if let Some((number, reports_by)) = &mut refreshing.task
                    && *number == self.number
                {
                    *reports_by = Instant::now() + REFRESH_REPORT;
                }
                refreshing.hint.take()
            };
            let within = cluster.settings.deadline.max(Duration::from_secs(1));
            let read = cluster
                .refresh(hint, within.min(Duration::from_secs(4)))
                .await;
            if let Err(error) = &read {
                tracing::debug!(%error, "the slot table cannot be read");
            }
            let troubled = read.is_err() || cluster.masters().iter().any(|node| node.is_troubled());
            {
                let mut refreshing = cluster.refreshing.lock();
                let again = refreshing.again || (troubled && begun.elapsed() < REFRESH_FOR);
                if !again {
                    if refreshing
                        .task
                        .is_some_and(|(number, _)| number == self.number)
                    {
                        refreshing.task = None;
                    }
                    return;
                }
            }
            drop(cluster);
            let pause = if troubled {
                backoff.next()
            } else {
                Duration::ZERO
            };
            tokio::time::sleep(pause.max(REFRESH_PAUSE)).await;
        }
    }
}

impl Drop for Refresher {
    /// The runtime may end before the task does.
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            let mut refreshing = cluster.refreshing.lock();
            if refreshing
                .task
                .is_some_and(|(number, _)| number == self.number)
            {
                refreshing.task = None;
            }
        }
    }
}
