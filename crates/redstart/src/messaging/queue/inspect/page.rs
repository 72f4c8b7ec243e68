//! Reading jobs in pages.

use super::{JobInfo, JobState, QueueInspector};
use crate::error::Result;

/// How many jobs one command reads.
const PAGE: usize = 200;

/// Where the next page of jobs begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCursor(Position);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Position {
    /// Counted from the list's end: jobs taken from its front do not move the others.
    List(usize),
    Ranked(u64),
    Delayed(u64),
    Running {
        worker: String,
        cursor: u64,
    },
    Parked {
        kind: String,
        cursor: u64,
    },
    Stream(String),
}

impl QueueInspector {
    pub(super) async fn page(
        &self,
        state: JobState,
        from: Option<JobCursor>,
    ) -> Result<(Vec<JobInfo>, Option<JobCursor>)> {
        let position = match from {
            Some(JobCursor(position)) => position,
            None => match state {
                JobState::Ready => Position::List(0),
                JobState::Delayed => Position::Delayed(0),
                JobState::Running => match self.next_worker(None).await? {
                    Some(worker) => Position::Running { worker, cursor: 0 },
                    None => return Ok((Vec::new(), None)),
                },
                JobState::Parked => match self.next_parked_kind(None).await? {
                    Some(kind) => Position::Parked { kind, cursor: 0 },
                    None => return Ok((Vec::new(), None)),
                },
                JobState::Done => Position::Stream("-".to_owned()),
                JobState::Dead => return Ok((Vec::new(), None)),
            },
        };
        // Of the list's last record.
        let mut last_place = 0;
        let (records, next) = match position {
            Position::List(skip) => {
                last_place = skip + 1;
                let (first, last) = (-((skip + PAGE) as i64), -(skip as i64) - 1);
                let mut range = redis::cmd("LRANGE");
                range
                    .arg(self.queue.entity().part("ready"))
                    .arg(first)
                    .arg(last);
                let records: Vec<Vec<u8>> = self.queue.store().query(&range).await?;
                let next = if records.len() < PAGE {
                    Position::Ranked(0)
                } else {
                    Position::List(skip + PAGE)
                };
                (records, Some(next))
            }
            Position::Ranked(cursor) => {
                let (next, records) = self.scan_scored("ranked", cursor).await?;
                (records, (next > 0).then_some(Position::Ranked(next)))
            }
            Position::Delayed(cursor) => {
                let (next, records) = self.scan_scored("delayed", cursor).await?;
                (records, (next > 0).then_some(Position::Delayed(next)))
            }
            Position::Running { worker, cursor } => return self.running(worker, cursor).await,
            Position::Parked { kind, cursor } => {
                let part = format!("parked:{kind}");
                let (next, records) = self.scan_scored(&part, cursor).await?;
                let next = if next > 0 {
                    Some(Position::Parked { kind, cursor: next })
                } else {
                    self.next_parked_kind(Some(&kind))
                        .await?
                        .map(|kind| Position::Parked { kind, cursor: 0 })
                };
                (records, next)
            }
            Position::Stream(from) => {
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
                    .map(|(id, _)| Position::Stream(format!("({id}")));
                let records = entries
                    .into_iter()
                    .filter_map(|(_, fields)| fields.into_iter().nth(1))
                    .collect();
                (records, next)
            }
        };
        let first_place = last_place + records.len();
        let jobs = records
            .into_iter()
            .enumerate()
            .filter_map(|(at, record)| {
                let mut job = JobInfo::read(record, state)?;
                job.place = first_place.saturating_sub(at + 1);
                Some(job)
            })
            .collect();
        Ok((jobs, next.map(JobCursor)))
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

    async fn running(
        &self,
        worker: String,
        cursor: u64,
    ) -> Result<(Vec<JobInfo>, Option<JobCursor>)> {
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
            .filter_map(|(_, record)| JobInfo::read(record, JobState::Running))
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
            Some(Position::Running { worker, cursor })
        } else {
            self.next_worker(Some(&worker))
                .await?
                .map(|worker| Position::Running { worker, cursor: 0 })
        };
        Ok((jobs, next.map(JobCursor)))
    }

    /// The next worker by name, so that workers that come and go do not change the order.
    async fn next_worker(&self, after: Option<&String>) -> Result<Option<String>> {
        let (workers, _) = self.workers_and_parked_kinds().await?;
        Ok(next_name(workers, after))
    }

    async fn next_parked_kind(&self, after: Option<&String>) -> Result<Option<String>> {
        let (_, kinds) = self.workers_and_parked_kinds().await?;
        Ok(next_name(kinds, after))
    }
}

fn next_name(names: Vec<String>, after: Option<&String>) -> Option<String> {
    names
        .into_iter()
        .filter(|name| after.is_none_or(|after| name > after))
        .min()
}
