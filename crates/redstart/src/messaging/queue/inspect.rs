//! A look inside a queue, and a hand on it. Nothing here blocks the server: lists are read in pages.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{JobId, Queue, job::Record, script};
use crate::{
    codec::{Codec, Json},
    error::{Error, Result},
    observe,
    script::Script,
};

static REMOVE: Script = script!("queue.remove", "remove.lua");
static HASTEN: Script = script!("queue.hasten", "hasten.lua");
static REPLAY: Script = script!("queue.replay", "replay.lua");
static PAUSE: Script = script!("queue.pause", "pause.lua");

/// How many jobs one command reads.
const PAGE: usize = 200;

pub(super) async fn set_paused(queue: &Queue, paused: bool) -> Result<()> {
    PAUSE
        .on(queue.entity())
        .part("meta")
        .arg(&queue.0.channel)
        .arg(u8::from(paused))
        .idempotent()
        .run::<u8>(queue.store())
        .await
        .map(drop)
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It waits for a worker.
    Ready,
    /// It waits for its time: delayed, or between attempts.
    Delayed,
    /// A worker has it.
    Running,
    /// It is done and was [retained](super::QueueBuilder::retain).
    Done,
}

/// How many jobs are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Wait for a worker.
    pub ready: u64,
    /// Wait for their time.
    pub delayed: u64,
    /// Are held by workers.
    pub running: u64,
    /// Dead letters.
    pub dead: u64,
    /// Done and retained.
    pub done: u64,
    /// Registered workers, those included whose lease ran out and that nobody has noticed yet.
    pub workers: u64,
    /// Whether the queue is paused.
    pub paused: bool,
}

impl Counts {
    /// All that are not done yet: ready, delayed and running.
    pub fn waiting(&self) -> u64 {
        self.ready + self.delayed + self.running
    }
}

/// A job as it was seen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// The name of its kind.
    pub name: String,
    /// Where it was seen.
    pub state: State,
    /// Attempts that were charged so far; a running one has begun one more.
    pub attempts: u32,
    /// Its priority.
    pub priority: i16,
    /// When it became or becomes ready, since the Unix epoch.
    pub due: Duration,
    /// The payload: JSON.
    pub payload: Vec<u8>,
    /// The worker that has it.
    pub worker: Option<String>,
    /// How far it says it is.
    pub progress: Option<f64>,
    record: Vec<u8>,
}

impl JobInfo {
    fn read(record: Vec<u8>, state: State) -> Option<Self> {
        let parsed = Record::parse(&record)?;
        Some(Self {
            id: parsed.id,
            state,
            attempts: u32::from(parsed.attempts),
            priority: parsed.priority,
            due: Duration::from_micros(parsed.due),
            payload: parsed.payload(&record).to_vec(),
            name: parsed.name,
            worker: None,
            progress: None,
            record,
        })
    }

    /// The payload as a type.
    ///
    /// # Errors
    ///
    /// [`is_codec`](Error::is_codec) if it is none.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        Json::decode(&self.payload)
    }
}

/// Where the next page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Place);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// So many from the list's end: takers at its front do not move what is behind.
    List(usize),
    Ranked(u64),
    Delayed(u64),
    Running {
        worker: String,
        cursor: u64,
    },
    Stream(String),
}

/// Made by [`Queue::inspect`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, messaging::queue::{Job, Queue, State}};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
/// # impl Job for Mail { const NAME: &'static str = "mail"; }
/// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
/// for to in ["ann", "bob", "eve"] {
///     let _ = queue.enqueue(&Mail { to: to.into() }).await?;
/// }
/// let look = queue.inspect();
/// assert_eq!(look.counts().await?.ready, 3);
/// let found = look.search(State::Ready, "bob", 10).await?;
/// assert_eq!(found.len(), 1);
/// assert!(look.delete(found[0].id).await?);
/// assert_eq!(look.counts().await?.ready, 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Inspector {
    queue: Queue,
}

impl Inspector {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue }
    }

    /// How many jobs are where.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn counts(&self) -> Result<Counts> {
        let (entity, store) = (self.queue.entity(), self.queue.store());
        let workers = self.workers().await?;
        let mut pipeline = redis::pipe();
        for (command, part) in [
            ("LLEN", "ready"),
            ("ZCARD", "ranked"),
            ("ZCARD", "delayed"),
            ("XLEN", "dead"),
            ("XLEN", "done"),
        ] {
            pipeline.cmd(command).arg(entity.part(part));
        }
        pipeline
            .cmd("HEXISTS")
            .arg(entity.part("meta"))
            .arg("paused");
        for worker in &workers {
            pipeline
                .cmd("HLEN")
                .arg(entity.part(&format!("running:{worker}")));
        }
        let numbers: Vec<u64> = store.pipeline(&pipeline).await?;
        Ok(Counts {
            ready: numbers[0] + numbers[1],
            delayed: numbers[2],
            dead: numbers[3],
            done: numbers[4],
            paused: numbers[5] == 1,
            // One field of each hash is the worker's epoch.
            running: numbers[6..].iter().map(|held| held.saturating_sub(1)).sum(),
            workers: workers.len() as u64,
        })
    }

    async fn workers(&self) -> Result<Vec<String>> {
        let key = self.queue.entity().part("workers");
        let all = redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).to_owned();
        self.queue.store().query(&all).await
    }

    /// A page of jobs, in no particular order, and where the next one begins.
    ///
    /// A job that stays where it is while all pages are read is in one of them; it may be in two.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn list(
        &self,
        state: State,
        from: Option<Cursor>,
    ) -> Result<(Vec<JobInfo>, Option<Cursor>)> {
        observe::operation(
            "queue.inspect",
            self.queue.entity().namespace(),
            self.page(state, from),
        )
        .await
    }

    async fn page(
        &self,
        state: State,
        from: Option<Cursor>,
    ) -> Result<(Vec<JobInfo>, Option<Cursor>)> {
        let place = match from {
            Some(Cursor(place)) => place,
            None => match state {
                State::Ready => Place::List(0),
                State::Delayed => Place::Delayed(0),
                State::Running => match self.workers().await?.into_iter().min() {
                    Some(worker) => Place::Running { worker, cursor: 0 },
                    None => return Ok((Vec::new(), None)),
                },
                State::Done => Place::Stream("-".to_owned()),
            },
        };
        let (records, next) = match place {
            Place::List(skip) => {
                let (first, last) = (-((skip + PAGE) as i64), -(skip as i64) - 1);
                let mut range = redis::cmd("LRANGE");
                range
                    .arg(self.queue.entity().part("ready"))
                    .arg(first)
                    .arg(last);
                let records: Vec<Vec<u8>> = self.queue.store().query(&range).await?;
                let next = if records.len() < PAGE {
                    Place::Ranked(0)
                } else {
                    Place::List(skip + PAGE)
                };
                (records, Some(next))
            }
            Place::Ranked(cursor) => {
                let (next, records) = self.scan_scored("ranked", cursor).await?;
                (records, (next > 0).then_some(Place::Ranked(next)))
            }
            Place::Delayed(cursor) => {
                let (next, records) = self.scan_scored("delayed", cursor).await?;
                (records, (next > 0).then_some(Place::Delayed(next)))
            }
            Place::Running { worker, cursor } => return self.running(worker, cursor).await,
            Place::Stream(from) => {
                let mut range = redis::cmd("XRANGE");
                range
                    .arg(self.queue.entity().part("done"))
                    .arg(&from)
                    .arg("+")
                    .arg("COUNT")
                    .arg(PAGE);
                let entries: Vec<(String, Vec<Vec<u8>>)> = self.queue.store().query(&range).await?;
                let next = entries
                    .last()
                    .filter(|_| entries.len() == PAGE)
                    .map(|(id, _)| Place::Stream(format!("({id}")));
                let records = entries
                    .into_iter()
                    .filter_map(|(_, fields)| fields.into_iter().nth(1))
                    .collect();
                (records, next)
            }
        };
        let jobs = records
            .into_iter()
            .filter_map(|record| JobInfo::read(record, state))
            .collect();
        Ok((jobs, next.map(Cursor)))
    }

    async fn scan_scored(&self, part: &str, cursor: u64) -> Result<(u64, Vec<Vec<u8>>)> {
        let mut scan = redis::cmd("ZSCAN");
        scan.arg(self.queue.entity().part(part))
            .arg(cursor)
            .arg("COUNT")
            .arg(PAGE);
        let (next, found): (u64, Vec<(Vec<u8>, f64)>) = self.queue.store().query(&scan).await?;
        Ok((next, found.into_iter().map(|(record, _)| record).collect()))
    }

    async fn running(&self, worker: String, cursor: u64) -> Result<(Vec<JobInfo>, Option<Cursor>)> {
        let (entity, store) = (self.queue.entity(), self.queue.store());
        let mut scan = redis::cmd("HSCAN");
        scan.arg(entity.part(&format!("running:{worker}")))
            .arg(cursor)
            .arg("COUNT")
            .arg(PAGE);
        type Held = Vec<(Vec<u8>, Vec<u8>)>;
        let (cursor, held): (u64, Held) = store.query(&scan).await?;
        let mut jobs: Vec<JobInfo> = held
            .into_iter()
            .filter_map(|(_, record)| JobInfo::read(record, State::Running))
            .collect();
        if !jobs.is_empty() {
            let mut get = redis::cmd("HMGET");
            get.arg(entity.part("progress"));
            for job in &jobs {
                get.arg(&job.id.0[..]);
            }
            let progress: Vec<Option<f64>> = store.query(&get).await?;
            for (job, progress) in jobs.iter_mut().zip(progress) {
                job.worker = Some(worker.clone());
                job.progress = progress;
            }
        }
        let next = if cursor > 0 {
            Some(Place::Running { worker, cursor })
        } else {
            // The next worker by name, so that those who come and go do not confuse the order.
            let mut workers = self.workers().await?;
            workers.sort();
            workers
                .into_iter()
                .find(|other| *other > worker)
                .map(|worker| Place::Running { worker, cursor: 0 })
        };
        Ok((jobs, next.map(Cursor)))
    }

    /// Jobs whose payload contains a text, at most `limit` of them. Reads all jobs of that state, page by page.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn search(&self, state: State, text: &str, limit: usize) -> Result<Vec<JobInfo>> {
        let text = text.as_bytes();
        self.matching(state, limit, |job| {
            text.is_empty() || job.payload.windows(text.len()).any(|part| part == text)
        })
        .await
    }

    async fn matching(
        &self,
        state: State,
        limit: usize,
        matches: impl Fn(&JobInfo) -> bool,
    ) -> Result<Vec<JobInfo>> {
        let mut seen = std::collections::HashSet::new();
        let mut found = Vec::new();
        let mut from = None;
        loop {
            let (jobs, next) = self.list(state, from).await?;
            for job in jobs {
                if found.len() < limit && matches(&job) && seen.insert(job.id) {
                    found.push(job);
                }
            }
            match next {
                Some(next) if found.len() < limit => from = Some(next),
                _ => return Ok(found),
            }
        }
    }

    /// A job that is not done, by its id. Reads page by page until it is found.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn find(&self, id: JobId) -> Result<Option<JobInfo>> {
        for state in [State::Running, State::Ready, State::Delayed] {
            let found = self.matching(state, 1, |job| job.id == id).await?;
            if let Some(job) = found.into_iter().next() {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    /// Deletes a job that waits, and frees its unique key; `false` if it runs, or is not there.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn delete(&self, id: JobId) -> Result<bool> {
        let Some(job) = self.find(id).await? else {
            return Ok(false);
        };
        let (kind, part) = match (job.state, job.priority) {
            (State::Ready, 0) => ("list", "ready"),
            (State::Ready, _) => ("zset", "ranked"),
            (State::Delayed, _) => ("zset", "delayed"),
            _ => return Ok(false),
        };
        let removed: u8 = REMOVE
            .on(self.queue.entity())
            .part(part)
            .part("unique")
            .arg(kind)
            .arg(&job.record[..])
            .run(self.queue.store())
            .await?;
        Ok(removed == 1)
    }

    /// Makes a delayed job ready now, be it delayed by its enqueuer or waiting for its next attempt.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn retry(&self, id: JobId) -> Result<bool> {
        let found = self.matching(State::Delayed, 1, |job| job.id == id).await?;
        let Some(job) = found.into_iter().next() else {
            return Ok(false);
        };
        let hastened: u8 = HASTEN
            .on(self.queue.entity())
            .part("delayed")
            .part("ready")
            .part("ranked")
            .part("meta")
            .arg(&self.queue.0.channel)
            .arg(self.queue.0.boost)
            .arg(&job.record[..])
            .run(self.queue.store())
            .await?;
        Ok(hastened == 1)
    }

    /// The dead letters.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters {
            queue: self.queue.clone(),
        }
    }
}

/// A job that failed for good.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The letter's own id, in order of death.
    pub letter: String,
    /// The job; `None` if its record was corrupt.
    pub job: Option<JobInfo>,
    /// Why it died.
    pub reason: String,
    /// When, since the Unix epoch.
    pub at: Duration,
}

/// The dead letters of a queue; made by [`Inspector::dead_letters`]. They stay until they are replayed or
/// purged.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    queue: Queue,
}

impl DeadLetters {
    /// A page of letters, oldest first, after the given letter.
    ///
    /// # Errors
    ///
    /// Those of the store; [`is_config`](Error::is_config) if `after` is no letter's id.
    pub async fn list(&self, after: Option<&str>) -> Result<Vec<DeadLetter>> {
        let from = match after {
            None => "-".to_owned(),
            Some(letter) => format!("({}", check(letter)?),
        };
        self.range(&from, "+").await
    }

    async fn range(&self, from: &str, to: &str) -> Result<Vec<DeadLetter>> {
        let mut range = redis::cmd("XRANGE");
        range
            .arg(self.queue.entity().part("dead"))
            .arg(from)
            .arg(to)
            .arg("COUNT")
            .arg(PAGE);
        let entries: Vec<(String, Vec<Vec<u8>>)> = self.queue.store().query(&range).await?;
        Ok(entries
            .into_iter()
            .map(|(letter, fields)| {
                let mut values = fields.into_iter().skip(1).step_by(2);
                let record = values.next().unwrap_or_default();
                let text = |bytes: Option<Vec<u8>>| {
                    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
                };
                DeadLetter {
                    letter,
                    job: JobInfo::read(record, State::Done),
                    reason: text(values.next()),
                    at: Duration::from_micros(text(values.next()).parse().unwrap_or(0)),
                }
            })
            .collect())
    }

    /// Makes the letters that the filter takes ready again, with all their attempts before them; how many.
    ///
    /// Letters that die anew meanwhile are not replayed again. One whose unique key another job holds by now
    /// stays where it is, as does one whose record is corrupt.
    ///
    /// # Errors
    ///
    /// Those of the store; some letters may have been replayed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some letters may have been replayed; none is lost.
    pub async fn replay(&self, filter: impl Fn(&DeadLetter) -> bool) -> Result<u64> {
        observe::operation("queue.replay", self.queue.entity().namespace(), async {
            let mut replayed = 0;
            let mut pages = self.pages().await?;
            while let Some(letters) = self.next_page(&mut pages, &filter).await? {
                if letters.is_empty() {
                    continue;
                }
                let mut call = REPLAY
                    .on(self.queue.entity())
                    .part("dead")
                    .part("ready")
                    .part("ranked")
                    .part("meta")
                    .part("unique")
                    .arg(&self.queue.0.channel)
                    .arg(self.queue.0.boost);
                for letter in &letters {
                    call = call.arg(letter);
                }
                replayed += call.run::<u64>(self.queue.store()).await?;
            }
            Ok(replayed)
        })
        .await
    }

    /// Deletes the letters that the filter takes; how many.
    ///
    /// # Errors
    ///
    /// Those of the store; some letters may have been deleted.
    pub async fn purge(&self, filter: impl Fn(&DeadLetter) -> bool) -> Result<u64> {
        let mut purged = 0;
        let mut pages = self.pages().await?;
        while let Some(letters) = self.next_page(&mut pages, &filter).await? {
            if letters.is_empty() {
                continue;
            }
            let mut delete = redis::cmd("XDEL");
            delete.arg(self.queue.entity().part("dead"));
            for letter in &letters {
                delete.arg(letter);
            }
            purged += self.queue.store().query::<u64>(&delete).await?;
        }
        Ok(purged)
    }

    /// Begins to page over the letters that are there now; later ones are left out.
    async fn pages(&self) -> Result<Pages> {
        let mut newest = redis::cmd("XREVRANGE");
        newest
            .arg(self.queue.entity().part("dead"))
            .arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(1);
        let newest: Vec<(String, redis::Value)> = self.queue.store().query(&newest).await?;
        Ok(Pages {
            from: "-".to_owned(),
            newest: newest.into_iter().next().map(|(letter, _)| letter),
        })
    }

    /// The letters of the next page that the filter takes; `None` after the last page.
    async fn next_page(
        &self,
        pages: &mut Pages,
        filter: &impl Fn(&DeadLetter) -> bool,
    ) -> Result<Option<Vec<String>>> {
        let Some(newest) = &pages.newest else {
            return Ok(None);
        };
        let page = self.range(&pages.from, newest).await?;
        let Some(last) = page.last() else {
            return Ok(None);
        };
        pages.from = format!("({}", last.letter);
        let taken = page.iter().filter(|letter| filter(letter));
        Ok(Some(taken.map(|letter| letter.letter.clone()).collect()))
    }
}

/// How far [`DeadLetters::pages`] has come.
struct Pages {
    from: String,
    newest: Option<String>,
}

fn check(letter: &str) -> Result<&str> {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match letter.split_once('-') {
        Some((time, sequence)) if number(time) && number(sequence) => Ok(letter),
        _ => Err(Error::config("this is no dead letter's id")),
    }
}
