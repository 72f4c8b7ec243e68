//! Changes of all jobs that match a filter: counted first, confirmed, and then made in small pieces, by a task of this
//! instance that outlives the request.

mod action;
mod counted;
mod work;

pub(crate) use action::{Action, Stage};

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use http::StatusCode;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{look::parse_state, queue, state_name};
use crate::{
    call::{Call, Seconds},
    held::random_id,
    problem::{Kind, Problem},
    reply::Reply,
    scan::Filter,
};
use counted::Counted;
use work::Work;

/// Those that are under way at the same time, those that wait for a confirmation, and those that are over and remembered.
const RUNNING: usize = 16;
const MOST: usize = 1000;
/// How long one is remembered after it ended.
const KEPT: Duration = Duration::from_secs(3600);
/// How long the jobs of one that nobody confirms take room that others may need.
const UNCONFIRMED: Duration = Duration::from_secs(300);

/// How far it is.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub(crate) stage: Stage,
    pub(crate) scanned: u64,
    pub(crate) total: u64,
    /// How many matched when they were counted.
    pub(crate) matched: u64,
    pub(crate) changed: u64,
    /// When the stage began.
    since: Instant,
}

/// One change of many jobs.
pub(crate) struct Bulk {
    pub(crate) id: String,
    namespace: String,
    name: String,
    pub(crate) action: Action,
    pub(crate) filter: Filter,
    /// When the count began, by the store's clock: jobs that came later are left out.
    moment: Duration,
    progress: watch::Sender<Reached>,
    /// The jobs that were counted: the only ones that a confirmation is about.
    counted: Mutex<Counted>,
    stop: CancellationToken,
}

/// Those of this instance.
#[derive(Default)]
pub(crate) struct Bulks {
    known: Mutex<HashMap<String, Arc<Bulk>>>,
    /// How many jobs they have counted and keep.
    room: Arc<AtomicUsize>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewBulk {
    action: Action,
    /// retry: dead. promote: delayed. cancel: ready, delayed, running, parked or waiting. delete: ready, delayed, parked,
    /// waiting or dead.
    state: String,
    /// Only jobs of this kind.
    kind: Option<String>,
    /// Only dead letters whose error contains this text.
    error: Option<String>,
    /// Only dead letters whose error is this one, with numbers, ids and quoted text replaced as the dashboard does.
    group: Option<String>,
    /// Only jobs whose payload contains this text.
    text: Option<String>,
    /// Every job of the state. Without it, at least one of the others must be given.
    #[serde(default)]
    all: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Confirm {
    /// How many were counted.
    count: u64,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct BulkView {
    id: String,
    action: Action,
    state: &'static str,
    stage: Stage,
    /// How many jobs were read in this stage, of how many.
    scanned: u64,
    total: u64,
    /// How many match, as far as they are counted.
    matched: u64,
    /// How many are changed so far.
    changed: u64,
}

impl Bulk {
    pub(crate) fn progress(&self) -> Reached {
        self.progress.borrow().clone()
    }

    fn view(&self) -> BulkView {
        let progress = self.progress();
        BulkView {
            id: self.id.clone(),
            action: self.action,
            state: state_name(self.filter.state),
            stage: progress.stage,
            scanned: progress.scanned,
            total: progress.total,
            matched: progress.matched,
            changed: progress.changed,
        }
    }

    /// The filter in words.
    pub(crate) fn words(&self) -> String {
        let filter = &self.filter;
        let mut words = format!("state={}", state_name(filter.state));
        let parts = [
            ("kind", &filter.kind),
            ("error", &filter.error),
            ("group", &filter.group),
            ("text", &filter.text),
        ];
        for (name, value) in parts {
            if let Some(value) = value {
                words += &format!(" {name}={value:?}");
            }
        }
        words
    }

    fn update(&self, change: impl FnOnce(&mut Reached)) {
        self.progress.send_modify(change);
    }

    fn enter(&self, stage: Stage) {
        self.update(|progress| {
            progress.stage = stage;
            progress.since = Instant::now();
        });
    }

    /// Gives its room to others if nobody has confirmed it for long.
    fn forget_unconfirmed(&self) {
        self.progress.send_if_modified(|progress| {
            let is_late =
                progress.stage == Stage::Counted && progress.since.elapsed() >= UNCONFIRMED;
            if is_late {
                progress.stage = Stage::Expired;
                progress.since = Instant::now();
                self.counted.lock().take();
            }
            is_late
        });
    }

    /// Waits until it is counted or over.
    async fn settled(&self, time: Duration) {
        let mut progress = self.progress.subscribe();
        let settled = progress.wait_for(|progress| !progress.stage.is_under_way());
        let _ = tokio::time::timeout(time, settled).await;
    }
}

impl Bulks {
    /// Counts the jobs that match, in a task of its own.
    pub(crate) async fn begin(
        &self,
        call: &Call,
        namespace: &str,
        name: &str,
        action: Action,
        filter: Filter,
        all: bool,
    ) -> Result<Arc<Bulk>, Problem> {
        filter.check()?;
        if !action.fits(filter.state) {
            let (action, state) = (action.name(), state_name(filter.state));
            return Err(Problem::invalid(format!(
                "{action} is not for jobs that are {state}"
            )));
        }
        // A request that says nothing must not mean everything.
        if filter.is_all() != all {
            return Err(Problem::invalid(
                "say which jobs: `kind`, `error`, `group` or `text`, or else `all`",
            ));
        }
        let queue = super::open_queue(&call.app.store, namespace, name)?;
        let bulk = Arc::new(Bulk {
            id: random_id(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            action,
            filter,
            moment: queue.inspect().time().await?,
            progress: watch::Sender::new(Reached {
                stage: Stage::Counting,
                scanned: 0,
                total: 0,
                matched: 0,
                changed: 0,
                since: Instant::now(),
            }),
            counted: Mutex::new(Counted::new(&self.room)),
            stop: call.app.stop.child_token(),
        });
        self.keep(&bulk)?;
        let work = Work {
            app: call.app.clone(),
            who: call.identity.name.clone(),
            bulk: bulk.clone(),
            queue,
        };
        work.start(Stage::Counting);
        Ok(bulk)
    }

    fn keep(&self, bulk: &Arc<Bulk>) -> Result<(), Problem> {
        let mut known = self.known.lock();
        known.retain(|_, bulk| {
            bulk.forget_unconfirmed();
            let progress = bulk.progress.borrow();
            !progress.stage.is_over() || progress.since.elapsed() < KEPT
        });
        let refused = |text: &'static str| {
            let problem = Problem::new(Kind::TooManyWaiting).detail(text);
            Err(problem.retry_after(Duration::from_secs(5)))
        };
        let count = |is: fn(Stage) -> bool| {
            let mut stages = known.values().map(|bulk| bulk.progress.borrow().stage);
            stages.by_ref().filter(|stage| is(*stage)).count()
        };
        if count(Stage::is_under_way) >= RUNNING {
            return refused("as many changes of many jobs are under way as may be");
        }
        if count(|stage| stage == Stage::Counted) >= MOST {
            return refused("very many changes are counted and wait for a confirmation; stop some");
        }
        if count(Stage::is_over) >= MOST {
            let over = known.values().filter_map(|bulk| {
                let progress = bulk.progress.borrow();
                let is_over = progress.stage.is_over();
                is_over.then(|| (progress.since, bulk.id.clone()))
            });
            if let Some((_, oldest)) = over.min() {
                known.remove(&oldest);
            }
        }
        known.insert(bulk.id.clone(), bulk.clone());
        Ok(())
    }

    /// One of this queue.
    pub(crate) fn find(&self, namespace: &str, name: &str, id: &str) -> Result<Arc<Bulk>, Problem> {
        let found = self.known.lock().get(id).cloned();
        found
            .filter(|bulk| bulk.namespace == namespace && bulk.name == name)
            .ok_or_else(|| Problem::not_found("change of many jobs; another instance may have it"))
    }

    /// Makes the change, if so many were counted. One that was confirmed before is left as it is.
    pub(crate) async fn confirm(
        &self,
        call: &Call,
        bulk: &Arc<Bulk>,
        count: u64,
    ) -> Result<(), Problem> {
        let conflict = |text: String| Problem::new(Kind::Conflict).detail(text);
        let queue = super::open_queue(&call.app.store, &bulk.namespace, &bulk.name)?;
        let mut refused = None;
        bulk.progress.send_if_modified(|progress| {
            if progress.stage != Stage::Counted || progress.matched != count {
                let repeats = matches!(progress.stage, Stage::Running | Stage::Done);
                refused = Some(match progress.stage {
                    _ if repeats && progress.matched == count => None,
                    Stage::Counting => Some("it is not counted yet".to_owned()),
                    Stage::Stopped | Stage::Failed => Some("it is over".to_owned()),
                    Stage::TooMany => Some("too many match; narrow the filter".to_owned()),
                    Stage::NoRoom => Some("there was no room to count it; count again".to_owned()),
                    Stage::Expired => Some("it was not confirmed in time; count again".to_owned()),
                    _ => Some(format!("{} jobs were counted", progress.matched)),
                });
                return false;
            }
            progress.stage = Stage::Running;
            progress.since = Instant::now();
            progress.scanned = 0;
            true
        });
        match refused {
            None => {}
            Some(None) => return Ok(()),
            Some(Some(text)) => return Err(conflict(text)),
        }
        let work = Work {
            app: call.app.clone(),
            who: call.identity.name.clone(),
            bulk: bulk.clone(),
            queue,
        };
        call.app
            .changed(
                call,
                bulk.action.change(),
                work.on(" (begun)"),
                0,
                Some(count),
            )
            .await;
        work.start(Stage::Running);
        Ok(())
    }

    pub(crate) fn stop(&self, bulk: &Bulk) {
        bulk.stop.cancel();
        // The task of one that is under way says itself how far it came.
        bulk.progress.send_if_modified(|progress| {
            let waits = progress.stage == Stage::Counted;
            if waits {
                progress.stage = Stage::Stopped;
                progress.since = Instant::now();
                bulk.counted.lock().take();
            }
            waits
        });
    }
}

pub(super) async fn begin_bulk(call: Call) -> Result<Reply, Problem> {
    let body: NewBulk = call.json()?;
    let filter = Filter {
        state: parse_state(&body.state)?,
        kind: body.kind,
        error: body.error,
        group: body.group,
        text: body.text,
        hidden: call.hidden().to_vec(),
    };
    let (namespace, name) = (call.namespace()?, call.param("name"));
    queue(&call)?;
    let bulks = &call.app.bulks;
    let begun = bulks.begin(&call, &namespace, name, body.action, filter, body.all);
    Ok(Reply::json(StatusCode::ACCEPTED, &begun.await?.view()))
}

fn bulk_of(call: &Call) -> Result<Arc<Bulk>, Problem> {
    let namespace = call.namespace()?;
    call.app
        .bulks
        .find(&namespace, call.param("name"), call.param("id"))
}

pub(super) async fn look_bulk(call: Call) -> Result<Reply, Problem> {
    let wait = call.wait(call.query.number::<f64>("wait")?.map(Seconds))?;
    let bulk = bulk_of(&call)?;
    bulk.settled(wait).await;
    Ok(Reply::ok(&bulk.view()))
}

pub(super) async fn confirm_bulk(call: Call) -> Result<Reply, Problem> {
    let body: Confirm = call.json()?;
    let bulk = bulk_of(&call)?;
    call.app.bulks.confirm(&call, &bulk, body.count).await?;
    Ok(Reply::json(StatusCode::ACCEPTED, &bulk.view()))
}

pub(super) async fn stop_bulk(call: Call) -> Result<Reply, Problem> {
    let bulk = bulk_of(&call)?;
    call.app.bulks.stop(&bulk);
    Ok(Reply::ok(&bulk.view()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use redstart::messaging::{JobState, Queue};

    use super::{counted::JOBS, *};

    #[test]
    fn counted_jobs_share_a_bounded_room_and_leave_it() {
        let room = Arc::default();
        let (mut one, mut other) = (Counted::new(&room), Counted::new(&room));
        assert_eq!(
            (one.reserve(JOBS - 10), other.reserve(10)),
            (Ok(()), Ok(()))
        );
        // The one has nearly all of the room; the other alone would not be too large.
        assert_eq!(other.reserve(1), Err(Stage::NoRoom));
        assert_eq!(one.reserve(11), Err(Stage::TooMany));
        assert_eq!(one.reserve(usize::MAX), Err(Stage::TooMany));
        drop(one.take());
        assert_eq!(other.reserve(JOBS - 10), Ok(()));
        assert_eq!(other.reserve(1), Err(Stage::TooMany));
        drop(other);
        assert_eq!(room.load(Ordering::Relaxed), 0);
    }

    fn bulk(all: &Bulks, id: usize, stage: Stage) -> Arc<Bulk> {
        Arc::new(Bulk {
            id: id.to_string(),
            namespace: "n".to_owned(),
            name: "q".to_owned(),
            action: Action::Delete,
            filter: Filter {
                state: JobState::Ready,
                kind: None,
                error: None,
                group: None,
                text: None,
                hidden: Vec::new(),
            },
            moment: Duration::ZERO,
            progress: watch::Sender::new(Reached {
                stage,
                scanned: 0,
                total: 0,
                matched: 0,
                changed: 0,
                since: Instant::now(),
            }),
            counted: Mutex::new(Counted::new(&all.room)),
            stop: CancellationToken::new(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_nobody_confirms_gives_its_room_back() {
        let all = Bulks::default();
        let forgotten = bulk(&all, 0, Stage::Counted);
        assert_eq!(forgotten.counted.lock().reserve(JOBS), Ok(()));
        all.keep(&forgotten).unwrap();
        let reserved = |id, stage| {
            let bulk = bulk(&all, id, stage);
            all.keep(&bulk).unwrap();
            bulk.counted.lock().reserve(1)
        };
        tokio::time::advance(UNCONFIRMED / 2).await;
        assert_eq!(reserved(1, Stage::Stopped), Err(Stage::NoRoom));
        tokio::time::advance(UNCONFIRMED / 2).await;
        assert_eq!(reserved(2, Stage::Stopped), Ok(()));
        assert_eq!(forgotten.progress().stage, Stage::Expired);
        // Who comes back to it learns why.
        assert!(all.find("n", "q", "0").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_are_over_keep_no_other_out() {
        let all = Bulks::default();
        for id in 0..2 * MOST {
            all.keep(&bulk(&all, id, Stage::Done)).unwrap();
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(all.known.lock().len(), MOST);
        assert!(all.find("n", "q", "0").is_err(), "the oldest is forgotten");
        for id in 0..RUNNING {
            all.keep(&bulk(&all, 10_000 + id, Stage::Running)).unwrap();
        }
        let refused = all.keep(&bulk(&all, 20_000, Stage::Counting));
        assert!(refused.is_err_and(|problem| problem.text().contains("under way")));
    }

    /// A job may begin between the look at its page and the change.
    #[tokio::test]
    async fn a_change_of_jobs_that_wait_leaves_those_that_run_by_now() {
        let store = redstart::Store::connect("memory://").await.unwrap();
        let queue = Queue::new(&store, "n", "q").unwrap();
        let mut ids = Vec::new();
        for n in 0..3 {
            let added = queue
                .enqueue_raw("mail", n.to_string().as_bytes())
                .await
                .unwrap();
            ids.push(added.id().unwrap());
        }
        let workers = queue.dispatcher(["mail"]).start().await.unwrap();
        let taken = workers.take(1, Duration::from_secs(60)).await.unwrap();
        assert_eq!(taken.len(), 1);
        let cancel = Action::Cancel.apply(&queue, JobState::Ready, &ids).await;
        assert_eq!(cancel.unwrap(), 2);
        let is_told = async || workers.is_cancelled(&taken[0].fence).await.unwrap();
        assert!(!is_told().await);
        let cancel = Action::Cancel.apply(&queue, JobState::Running, &ids).await;
        assert_eq!(cancel.unwrap(), 1);
        assert!(is_told().await);
    }
}
