//! Dead letters: jobs that failed for good.

use std::time::Duration;

use super::{JobInfo, JobState, Queue, script::REPLAY};
use crate::{
    error::{Error, Result},
    observe,
};

/// How many letters one command reads.
const PAGE: usize = 200;

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
                    job: JobInfo::read(record, JobState::Dead),
                    reason: text(values.next()),
                    at: Duration::from_micros(text(values.next()).parse().unwrap_or(0)),
                }
            })
            .collect())
    }

    /// Makes the letters that the filter accepts ready again, with all their attempts available; how many.
    ///
    /// Letters that are added meanwhile are not replayed. A letter stays if another job holds its unique key by now,
    /// or if its record is corrupt.
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
                let mut call = REPLAY
                    .on(self.queue.entity())
                    .part("dead")
                    .part("ready")
                    .part("ranked")
                    .part("idle")
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
            let mut delete = redis::cmd("XDEL");
            delete.arg(self.queue.entity().part("dead"));
            for letter in &letters {
                delete.arg(letter);
            }
            purged += self.queue.store().query::<u64>(&delete).await?;
        }
        Ok(purged)
    }

    /// Starts paging over the letters that exist now; later ones are left out.
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

    /// The letters of the next page that the filter accepts; `None` after the last page.
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
        let accepted = page.iter().filter(|letter| filter(letter));
        Ok(Some(accepted.map(|letter| letter.letter.clone()).collect()))
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
        _ => Err(Error::config("invalid dead letter id")),
    }
}
