//! The queue's events: one bounded stream for dashboards and for the application.

use std::time::Duration;

use super::{JobId, QueueInspector};
use crate::{error::Result, key::Key, store::Dedicated};

/// How many entries one command reads.
const PAGE: usize = 200;

/// What happened to jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueEventKind {
    /// They were enqueued.
    Added,
    /// A worker took them.
    Started,
    /// A handler recorded progress.
    Progress,
    /// They are done.
    Done,
    /// A run failed.
    Failed,
    /// They are dead letters.
    Dead,
    /// Their worker died.
    Stalled,
    /// They were cancelled or deleted.
    Cancelled,
    /// They were not started in time.
    Expired,
}

/// Something that happened, to one job or to several at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueEvent {
    /// Its place in the stream, for [`QueueInspector::events`].
    pub id: String,
    /// When, since the Unix epoch.
    pub at: Duration,
    /// What happened.
    pub kind: QueueEventKind,
    /// To which jobs.
    pub jobs: Vec<JobId>,
    /// The kind of job that was added, the worker that started or ended it, the progress, or the error.
    pub text: String,
}

impl QueueEventKind {
    fn read(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"added" => Self::Added,
            b"started" => Self::Started,
            b"progress" => Self::Progress,
            b"done" => Self::Done,
            b"failed" => Self::Failed,
            b"dead" => Self::Dead,
            b"stalled" => Self::Stalled,
            b"cancelled" => Self::Cancelled,
            b"expired" => Self::Expired,
            _ => return None,
        })
    }

    /// Its name in the stream.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Started => "started",
            Self::Progress => "progress",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Stalled => "stalled",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

impl QueueEvent {
    fn read(id: String, fields: &[(Vec<u8>, Vec<u8>)]) -> Option<Self> {
        let field = |name: &[u8]| fields.iter().find(|(n, _)| n == name).map(|(_, v)| &v[..]);
        let millis = id.split('-').next()?.parse().ok()?;
        Some(Self {
            at: Duration::from_millis(millis),
            kind: QueueEventKind::read(field(b"event")?)?,
            jobs: field(b"jobs")?
                .chunks_exact(16)
                .filter_map(JobId::read)
                .collect(),
            text: String::from_utf8_lossy(field(b"text").unwrap_or_default()).into_owned(),
            id,
        })
    }
}

type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

impl QueueInspector {
    /// A page of up to 200 events after the given one, oldest first, if events are
    /// [kept](super::QueueBuilder::keep_events). `None` starts with the oldest that is left.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn events(&self, after: Option<&str>) -> Result<Vec<QueueEvent>> {
        let from = after.map_or("-".to_owned(), |after| format!("({after}"));
        let mut range = redis::cmd("XRANGE");
        range
            .arg(self.queue().entity().part("events"))
            .arg(from)
            .arg("+")
            .arg("COUNT")
            .arg(PAGE);
        let entries: Vec<Entry> = self.queue().store().query(&range).await?;
        Ok(read(entries))
    }

    /// Follows the events after the given one; `None` means from now on. It has a connection of its own.
    pub fn follow_events(&self, after: Option<&str>) -> QueueEvents {
        let events = self.queue().entity().part("events");
        QueueEvents {
            connection: self.queue().store().dedicated(&events),
            events,
            after: after.map(str::to_owned),
        }
    }
}

/// The events of a queue as they happen; made by [`QueueInspector::follow_events`].
#[derive(Debug)]
pub struct QueueEvents {
    connection: Dedicated,
    events: Key,
    after: Option<String>,
}

impl QueueEvents {
    /// Waits for the next events, up to 200. Empty if there is none within `wait`.
    ///
    /// # Errors
    ///
    /// Those of the store. Call it again: no event is missed while it is in the stream.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and called again.
    pub async fn next(&mut self, wait: Duration) -> Result<Vec<QueueEvent>> {
        if self.after.is_none() {
            // So that nothing is missed between two calls.
            let mut newest = redis::cmd("XREVRANGE");
            newest
                .arg(&self.events)
                .arg("+")
                .arg("-")
                .arg("COUNT")
                .arg(1);
            let newest: Vec<Entry> = self.connection.query(&newest, Duration::ZERO).await?;
            let newest = newest.into_iter().next();
            self.after = Some(newest.map_or("0-0".to_owned(), |(id, _)| id));
        }
        let mut read_stream = redis::cmd("XREAD");
        read_stream
            .arg("COUNT")
            .arg(PAGE)
            .arg("BLOCK")
            .arg(crate::duration::millis(wait).max(1))
            .arg("STREAMS")
            .arg(&self.events)
            .arg(&self.after);
        let reply: Option<Vec<(String, Vec<Entry>)>> =
            self.connection.query(&read_stream, wait).await?;
        let entries: Vec<Entry> = reply.into_iter().flatten().flat_map(|(_, e)| e).collect();
        if let Some((last, _)) = entries.last() {
            self.after = Some(last.clone());
        }
        Ok(read(entries))
    }
}

fn read(entries: Vec<Entry>) -> Vec<QueueEvent> {
    entries
        .into_iter()
        .filter_map(|(id, fields)| QueueEvent::read(id, &fields))
        .collect()
}
