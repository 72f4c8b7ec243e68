//! Reading many jobs of a queue: page by page, paced, and from where one left off.
//!
//! Whatever looks through jobs takes its turn for each page: all searches together cost the store what one of them costs, and
//! so do all changes of many jobs. After each page there is a pause that is several times as long as the page took, so that
//! most of the store's time is left to others, and more of it the busier the store is. One page that somebody lists takes no
//! turn. A caller has a bounded number of searches under way, so that those of one do not hold up those of the others.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redstart::messaging::{
    DeadLetter, JobCursor, JobId, JobInfo, JobState, Queue, QueueCounts, normalized_error,
};
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    auth::Identity,
    pretty::redacted,
    problem::{Kind, Problem},
};

/// The shortest pause after a page.
const PAUSE: Duration = Duration::from_millis(4);
/// The longest: a store that hangs must not stop a search long after it is back.
const LONGEST: Duration = Duration::from_secs(1);
/// The pause is as many times as long as the page took.
const REST: u32 = 3;

/// Searches of one caller that may be under way at the same time.
const SEARCHES: usize = 16;

/// Whose turn it is to look through jobs, of those that look for the same reason.
pub(crate) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

/// How many searches each caller has under way.
#[derive(Clone, Default)]
pub(crate) struct Searches(Arc<Mutex<HashMap<String, usize>>>);

/// A search that is under way, until it is dropped.
pub(crate) struct Searching {
    all: Searches,
    who: String,
}

impl Searches {
    pub(crate) fn begin(&self, identity: &Identity) -> Result<Searching, Problem> {
        let who = identity.id();
        let mut all = self.0.lock();
        let count = all.entry(who.clone()).or_default();
        if *count >= SEARCHES {
            return Err(Problem::new(Kind::TooManyWaiting)
                .detail(format!("you have {SEARCHES} searches under way"))
                .retry_after(Duration::from_secs(1)));
        }
        *count += 1;
        let all = self.clone();
        Ok(Searching { all, who })
    }
}

impl Drop for Searching {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.who);
            }
        }
    }
}

impl Turns {
    /// Waits for a turn, does a bounded piece of work, and lets the store rest. Callers take turns in the order in which
    /// they came.
    pub(crate) async fn take<T>(&self, work: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let _turn = self.0.acquire().await;
        let begun = Instant::now();
        let done = work.await;
        let pause = (begun.elapsed() * REST).clamp(PAUSE, LONGEST);
        tokio::time::sleep(pause).await;
        done
    }
}

/// Which jobs are meant.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) state: JobState,
    pub(crate) kind: Option<String>,
    /// Text that the error of a dead letter contains.
    pub(crate) error: Option<String>,
    /// The error of a dead letter as [`normalized_error`] has it.
    pub(crate) group: Option<String>,
    /// Text that the payload contains.
    pub(crate) text: Option<String>,
    /// Fields of the payload that are not searched, because they are not shown either.
    pub(crate) hidden: Vec<String>,
}

impl Filter {
    pub(crate) fn check(&self) -> Result<(), Problem> {
        // Every text contains the empty one: what was meant to be some jobs would be all of them.
        let given = [&self.kind, &self.error, &self.group, &self.text];
        if given.into_iter().flatten().any(String::is_empty) {
            return Err(Problem::invalid(
                "`kind`, `error`, `group` and `text` must not be empty; leave them out instead",
            ));
        }
        if self.state != JobState::Dead && (self.error.is_some() || self.group.is_some()) {
            return Err(Problem::invalid(
                "only dead letters are chosen by their error: use state=dead",
            ));
        }
        Ok(())
    }

    /// Whether it means every job of the state.
    pub(crate) fn is_all(&self) -> bool {
        self.kind.is_none() && self.error.is_none() && self.group.is_none() && self.text.is_none()
    }

    fn accepts(&self, seen: &Seen) -> bool {
        let (job, error) = (seen.job.as_ref(), seen.error.as_deref());
        let kind = |kind: &String| job.is_some_and(|job| job.name == *kind);
        let part = |text: &String| error.is_some_and(|error| error.contains(text.as_str()));
        let group = |group: &String| error.is_some_and(|error| normalized_error(error) == *group);
        self.kind.as_ref().is_none_or(kind)
            && self.error.as_ref().is_none_or(part)
            && self.group.as_ref().is_none_or(group)
            && self
                .text
                .as_ref()
                .is_none_or(|text| job.is_some_and(|job| self.has_text(job, text)))
    }

    fn has_text(&self, job: &JobInfo, text: &str) -> bool {
        let payload = String::from_utf8_lossy(&job.payload);
        match &self.hidden[..] {
            [] => payload.contains(text),
            hidden => redacted(&payload, hidden).contains(text),
        }
    }
}

/// One job that was read.
pub(crate) struct Seen {
    pub(crate) id: JobId,
    /// `None` if the record of a dead letter is corrupt.
    pub(crate) job: Option<JobInfo>,
    /// Why a dead letter died.
    pub(crate) error: Option<String>,
}

/// Where a scan goes on.
#[derive(Clone, Debug)]
enum At {
    Start,
    Jobs(JobCursor),
    /// After this dead letter.
    Letter(String),
    End,
}

/// A look through all jobs of a state.
pub(crate) struct Scan {
    queue: Queue,
    pub(crate) filter: Filter,
    at: At,
    pub(crate) scanned: u64,
    total: u64,
    /// Jobs that came later are left out, if this is set.
    before: Option<Duration>,
    /// A job may be read twice; it is found once.
    found: HashSet<JobId>,
    /// What another scan has found, as far as this one has not: no other job is found.
    only: Option<HashSet<JobId>>,
}

impl Scan {
    /// From the beginning, or from where another scan of the same kind left off.
    pub(crate) async fn new(
        queue: &Queue,
        filter: Filter,
        from: Option<&str>,
    ) -> Result<Self, Problem> {
        filter.check()?;
        let (at, scanned) = match from {
            None => (At::Start, 0),
            Some(from) => parse_place(filter.state, from)?,
        };
        let counts = queue.inspect().counts().await?;
        Ok(Self {
            queue: queue.clone(),
            total: count_of(&counts, filter.state),
            filter,
            at,
            scanned,
            before: None,
            found: HashSet::new(),
            only: None,
        })
    }

    /// Leaves out what comes after this moment of the store's clock.
    pub(crate) fn before(mut self, moment: Duration) -> Self {
        self.before = Some(moment);
        self
    }

    /// Finds these jobs only, and is over when it has found all of them.
    pub(crate) fn only(mut self, jobs: HashSet<JobId>) -> Self {
        self.only = Some(jobs);
        self
    }

    /// The jobs that it has found.
    pub(crate) fn into_found(self) -> HashSet<JobId> {
        self.found
    }

    /// How many jobs there are, as far as is known.
    pub(crate) fn total(&self) -> u64 {
        match self.at {
            // Jobs come and go; at the end, all that there were have been read.
            At::End => self.scanned,
            _ => self.total.max(self.scanned),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        let has_all = self.only.as_ref().is_some_and(HashSet::is_empty);
        has_all || matches!(self.at, At::End)
    }

    /// Where another scan can go on, as text; `None` at the end.
    pub(crate) fn place(&self) -> Option<String> {
        let scanned = self.scanned;
        match &self.at {
            At::Start => Some(format!("{scanned}_")),
            At::Jobs(cursor) => Some(format!("{scanned}_{cursor}")),
            At::Letter(letter) => Some(format!("{scanned}_{letter}")),
            At::End => None,
        }
    }

    /// Reads one page in its turn; those of its jobs that are meant. Nothing is left to read when
    /// [`is_over`](Self::is_over).
    pub(crate) async fn step(&mut self, turns: &Turns) -> Result<Vec<Seen>, Problem> {
        let page = turns.take(self.page()).await?;
        Ok(self.meant(page))
    }

    /// The same at once, for one page that somebody waits for.
    pub(crate) async fn step_now(&mut self) -> Result<Vec<Seen>, Problem> {
        let page = self.page().await?;
        Ok(self.meant(page))
    }

    fn meant(&mut self, page: Vec<Seen>) -> Vec<Seen> {
        self.scanned += page.len() as u64;
        let before = self.before.unwrap_or(Duration::MAX);
        let mut found = Vec::new();
        for seen in page {
            let is_new = seen.job.as_ref().is_none_or(|job| match job.state {
                JobState::Dead => job.due <= before,
                _ => job.created <= before,
            });
            if is_new && self.filter.accepts(&seen) && self.is_first(seen.id) {
                found.push(seen);
            }
        }
        found
    }

    /// Whether a job that is meant is found now for the first time.
    fn is_first(&mut self, id: JobId) -> bool {
        match &mut self.only {
            Some(left) => left.remove(&id),
            None => self.found.insert(id),
        }
    }

    async fn page(&mut self) -> Result<Vec<Seen>, Problem> {
        let inspect = self.queue.inspect();
        if self.filter.state != JobState::Dead {
            let from = match &self.at {
                At::Jobs(cursor) => Some(cursor.clone()),
                At::End | At::Letter(_) => return Ok(Vec::new()),
                At::Start => None,
            };
            let (jobs, next) = inspect.list(self.filter.state, from).await?;
            self.at = next.map_or(At::End, At::Jobs);
            let seen = jobs.into_iter().map(|job| Seen {
                id: job.id,
                job: Some(job),
                error: None,
            });
            return Ok(seen.collect());
        }
        let after = match &self.at {
            At::Letter(letter) => Some(letter.as_str()),
            At::Start => None,
            At::Jobs(_) | At::End => return Ok(Vec::new()),
        };
        let letters = inspect.dead_letters().list(after).await?;
        let late = |letter: &DeadLetter| self.before.is_some_and(|before| letter.at > before);
        self.at = match letters.last() {
            Some(last) if !late(last) => At::Letter(last.letter.clone()),
            _ => At::End,
        };
        let seen = letters.into_iter().filter(|letter| !late(letter));
        Ok(seen.filter_map(dead).collect())
    }
}

fn dead(letter: DeadLetter) -> Option<Seen> {
    let (_, id) = letter.letter.split_once('-')?;
    Some(Seen {
        id: id.parse().ok()?,
        job: letter.job,
        error: Some(letter.reason),
    })
}

/// How many jobs of a state there are.
pub(crate) fn count_of(counts: &QueueCounts, state: JobState) -> u64 {
    match state {
        JobState::Ready => counts.ready,
        JobState::Delayed => counts.delayed,
        JobState::Running => counts.running,
        JobState::Parked => counts.parked,
        JobState::Waiting => counts.waiting,
        JobState::Dead => counts.dead,
        _ => counts.done,
    }
}

/// What [`Scan::place`] wrote.
fn parse_place(state: JobState, text: &str) -> Result<(At, u64), Problem> {
    let invalid = || Problem::invalid("from must be what an earlier answer gave as `next`");
    let (scanned, place) = text.split_once('_').ok_or_else(invalid)?;
    let scanned = scanned.parse().map_err(|_| invalid())?;
    let is_letter = |place: &str| {
        let parts = place.split_once('-');
        parts.is_some_and(|(at, id)| at.parse::<u64>().is_ok() && id.parse::<JobId>().is_ok())
    };
    let at = match (state, place) {
        (_, "") => At::Start,
        (JobState::Dead, place) if is_letter(place) => At::Letter(place.to_owned()),
        (JobState::Dead, _) => return Err(invalid()),
        (_, place) => At::Jobs(place.parse().map_err(|_| invalid())?),
    };
    Ok((at, scanned))
}

#[cfg(test)]
mod tests {
    use redstart::Store;

    use super::*;

    /// Searches that never end their turn hold up neither a page nor a change of many jobs.
    #[tokio::test]
    async fn what_is_not_a_search_waits_for_none() {
        let store = Store::connect("memory://").await.unwrap();
        let app = crate::app::App::new(&store, crate::Config::default()).unwrap();
        let queue = Queue::new(&store, "n", "q").unwrap();
        queue.enqueue_raw("mail", b"1").await.unwrap();
        let hang = app.searching.take(std::future::pending::<()>());
        let filter = Filter {
            state: JobState::Ready,
            kind: None,
            error: None,
            group: None,
            text: None,
            hidden: Vec::new(),
        };
        let others = async {
            let mut scan = Scan::new(&queue, filter.clone(), None).await.unwrap();
            assert_eq!(scan.step_now().await.unwrap().len(), 1);
            let mut scan = Scan::new(&queue, filter, None).await.unwrap();
            assert_eq!(scan.step(&app.changing_many).await.unwrap().len(), 1);
        };
        tokio::select! {
            biased;
            () = hang => unreachable!(),
            () = others => {}
        }
    }
}
