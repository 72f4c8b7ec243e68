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
                JobState::Running => match self.workers().await?.into_iter().min() {
                    Some(worker) => Position::Running { worker, cursor: 0 },
                    None => return Ok((Vec::new(), None)),
                },
                JobState::Done => Position::Stream("-".to_owned()),
                JobState::Dead => return Ok((Vec::new(), None)),
            },
        };
        let (records, next) = match position {
            Position::List(skip) => {
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
        let jobs = records
            .into_iter()
            .filter_map(|record| JobInfo::read(record, state))
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
            // The next worker by name, so that workers that come and go do not change the order.
            let mut workers = self.workers().await?;
            workers.sort();
            workers
                .into_iter()
                .find(|other| *other > worker)
                .map(|worker| Position::Running { worker, cursor: 0 })
        };
        Ok((jobs, next.map(JobCursor)))
    }
}
