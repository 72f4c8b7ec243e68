//! Dead letters: jobs that failed for good.

use std::{fmt, time::Duration};

use super::{
    JobId, JobInfo, Queue,
    script::{PURGE, REPLAY},
};
use crate::{
    error::{Error, Result},
    observe,
    script::Script,
};

/// How many letters one command reads.
const PAGE: usize = 200;
/// Letters that one script replays or deletes at most.
const BATCH: usize = 50;

/// A job that failed for good.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The letter's own name: the time of death and the job's id.
    pub letter: String,
    /// The job; `None` if its record was corrupt.
    pub job: Option<JobInfo>,
    /// Why it died.
    pub reason: String,
    /// When, since the Unix epoch.
    pub at: Duration,
}

/// The dead letters of a queue; made by [`QueueInspector::dead_letters`](super::QueueInspector::dead_letters). They
/// stay until they are replayed or purged.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    queue: Queue,
}

impl DeadLetters {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue }
    }

    /// A page of up to 200 letters, oldest first, after the given letter.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) if `after` is not a letter's id; otherwise those of the store.
    pub async fn list(&self, after: Option<&str>) -> Result<Vec<DeadLetter>> {
        let after = after.map(Place::parse).transpose()?;
        self.page(after, None).await
    }

    /// A page of up to 200 letters, newest first, without the `skip` newest. Letters that come or go between two pages move
    /// the others.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
    /// # use redstart::{Store, messaging::Queue};
    /// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
    /// assert!(queue.inspect().dead_letters().newest(0).await?.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn newest(&self, skip: usize) -> Result<Vec<DeadLetter>> {
        let mut range = redis::cmd("ZRANGE");
        range
            .arg(self.queue.entity().part("dead"))
            .arg(skip)
            .arg(skip.saturating_add(PAGE - 1))
            .arg("REV")
            .arg("WITHSCORES");
        let found: Vec<(Vec<u8>, f64)> = self.queue.store().query(&range).await?;
        let places = found.into_iter().filter_map(|(id, at)| {
            Some(Place {
                at: at as u64,
                id: JobId::read(&id)?,
            })
        });
        self.letters(&places.collect::<Vec<_>>()).await
    }

    /// Up to a page of letters after one place, up to and including another.
    async fn page(&self, after: Option<Place>, last: Option<Place>) -> Result<Vec<DeadLetter>> {
        let mut places = Vec::new();
        let mut skip = 0;
        // Many letters may have died in the same microsecond, so that some before `after` are read again.
        loop {
            let mut range = redis::cmd("ZRANGE");
            range
                .arg(self.queue.entity().part("dead"))
                .arg(after.map_or("-inf".to_owned(), |after| after.at.to_string()))
                .arg(last.map_or("+inf".to_owned(), |last| last.at.to_string()))
                .arg("BYSCORE")
                .arg("LIMIT")
                .arg(skip)
                .arg(PAGE)
                .arg("WITHSCORES");
            let found: Vec<(Vec<u8>, f64)> = self.queue.store().query(&range).await?;
            let count = found.len();
            places.extend(found.into_iter().filter_map(|(id, at)| {
                let place = Place {
                    at: at as u64,
                    id: JobId::read(&id)?,
                };
                let wanted = after.is_none_or(|after| place > after)
                    && last.is_none_or(|last| place <= last);
                wanted.then_some(place)
            }));
            if !places.is_empty() || count < PAGE {
                return self.letters(&places).await;
            }
            skip += PAGE;
        }
    }

    async fn letters(&self, places: &[Place]) -> Result<Vec<DeadLetter>> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let entity = self.queue.entity();
        let mut pipeline = redis::pipe();
        pipeline.cmd("HMGET").arg(entity.part("jobs"));
        for place in places {
            pipeline.arg(&place.id.0[..]);
        }
        pipeline.cmd("HMGET").arg(entity.part("details"));
        for place in places {
            pipeline.arg([&place.id.0[..], b"x"].concat());
        }
        type Found = Vec<Option<Vec<u8>>>;
        let (records, reasons): (Found, Found) = self.queue.store().pipeline(&pipeline).await?;
        let letters = places.iter().zip(records).zip(reasons);
        Ok(letters
            // One that was replayed or purged meanwhile has no reason.
            .filter_map(|((place, record), reason)| {
                Some(DeadLetter {
                    letter: place.to_string(),
                    job: record.and_then(JobInfo::read),
                    reason: String::from_utf8_lossy(&reason?).into_owned(),
                    at: Duration::from_micros(place.at),
                })
            })
            .collect())
    }

    /// Makes the letters that the filter accepts ready again, with all their attempts available; how many.
    ///
    /// Letters that are added meanwhile are not replayed. A letter stays if another job holds its unique key by now,
    /// or if its record is corrupt. A job with an [expiry](super::JobPolicy::expires_after) counts as enqueued now. A
    /// parent waits again for those of its children that are not over; a child that failed it and is a letter too must
    /// be replayed as well, or deleted.
    ///
    /// # Errors
    ///
    /// Those of the store; some letters may have been replayed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, some letters may have been replayed; none is lost.
    pub async fn replay(&self, filter: impl Fn(&DeadLetter) -> bool) -> Result<u64> {
        observe::operation("queue.replay", self.queue.namespace(), async {
            let mut replayed = 0;
            let mut pages = self.pages().await?;
            while let Some(letters) = self.next_page(&mut pages, &filter).await? {
                if letters.is_empty() {
                    continue;
                }
                let ids: Vec<JobId> = letters.iter().map(|letter| letter.id).collect();
                replayed += self.each_batch(&REPLAY, &ids).await?;
            }
            Ok(replayed)
        })
        .await
    }

    /// Deletes the letters that the filter accepts; how many.
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
            let ids: Vec<JobId> = letters.iter().map(|letter| letter.id).collect();
            purged += self.each_batch(&PURGE, &ids).await?;
        }
        Ok(purged)
    }

    /// Makes those of these jobs that are dead letters ready again, as [`replay`](Self::replay) does; how many.
    ///
    /// # Errors
    ///
    /// Those of the store; some letters may have been replayed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, some letters may have been replayed; none is lost.
    pub async fn replay_many(&self, ids: &[JobId]) -> Result<u64> {
        self.each_batch(&REPLAY, ids).await
    }

    /// Deletes those of these jobs that are dead letters; how many.
    ///
    /// # Errors
    ///
    /// Those of the store; some letters may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped early, some letters may have been deleted.
    pub async fn purge_many(&self, ids: &[JobId]) -> Result<u64> {
        self.each_batch(&PURGE, ids).await
    }

    async fn each_batch(&self, script: &'static Script, ids: &[JobId]) -> Result<u64> {
        let (mut changed, mut rest) = (0, ids);
        while !rest.is_empty() {
            let mut call = self.queue.call(script, &[]);
            for id in rest.iter().take(BATCH) {
                call = call.arg(&id.0[..]);
            }
            // It may have looked at less than it was given: letters with many details are much work.
            let (now, looked): (u64, usize) = call.run(self.queue.store()).await?;
            changed += now;
            rest = rest.get(looked.max(1)..).unwrap_or_default();
        }
        Ok(changed)
    }

    /// Starts paging over the letters that exist now; later ones are left out.
    async fn pages(&self) -> Result<Pages> {
        let mut newest = redis::cmd("ZRANGE");
        newest
            .arg(self.queue.entity().part("dead"))
            .arg(-1)
            .arg(-1)
            .arg("WITHSCORES");
        let newest: Vec<(Vec<u8>, f64)> = self.queue.store().query(&newest).await?;
        Ok(Pages {
            after: None,
            newest: newest.into_iter().next().and_then(|(id, at)| {
                Some(Place {
                    at: at as u64,
                    id: JobId::read(&id)?,
                })
            }),
        })
    }

    /// The letters of the next page that the filter accepts; `None` after the last page.
    async fn next_page(
        &self,
        pages: &mut Pages,
        filter: &impl Fn(&DeadLetter) -> bool,
    ) -> Result<Option<Vec<Place>>> {
        if pages.newest.is_none() {
            return Ok(None);
        }
        let page = self.page(pages.after, pages.newest).await?;
        let Some(last) = page.last() else {
            return Ok(None);
        };
        pages.after = Some(Place::parse(&last.letter)?);
        page.iter()
            .filter(|letter| filter(letter))
            .map(|letter| Place::parse(&letter.letter))
            .collect::<Result<Vec<_>>>()
            .map(Some)
    }
}

/// How far [`DeadLetters::pages`] has come.
struct Pages {
    after: Option<Place>,
    newest: Option<Place>,
}

/// A letter's place among the others: by time of death, then by id, as the sorted set has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// In microseconds.
    at: u64,
    id: JobId,
}

impl Place {
    fn parse(letter: &str) -> Result<Self> {
        let invalid = || Error::config("invalid dead letter id");
        let (at, id) = letter.split_once('-').ok_or_else(invalid)?;
        Ok(Self {
            at: at.parse().map_err(|_| invalid())?,
            id: id.parse().map_err(|_| invalid())?,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at, self.id)
    }
}
