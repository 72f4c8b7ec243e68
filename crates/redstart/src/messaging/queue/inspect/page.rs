//! Reading jobs in pages.

use std::{fmt, str::FromStr};

use super::{JobId, JobInfo, JobState, QueueInspector};
use crate::error::{Error, Result};

/// How many jobs one command reads.
const PAGE: usize = 200;
/// Ids that one command reads at most to find the place where a page begins, and how many commands look for it.
const SOUGHT: usize = 4000;
const TRIES: u32 = 16;
/// How many jobs of each container the oldest one is looked for among, and how many places of deleted jobs are passed over.
const FIRST: usize = 10;
const MOST_DELETED: usize = 100_000;

/// Where the next page of jobs begins. As text it has only ASCII letters, digits and dots.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, messaging::{JobCursor, JobState, Queue}};
/// # let queue = Queue::new(&Store::connect("memory://").await?, "shop", "mail")?;
/// let (_, next) = queue.inspect().list(JobState::Ready, None).await?;
/// let text = next.map(|next| next.to_string()).unwrap_or_default();
/// let next: JobCursor = text.parse()?;
/// # assert_eq!(next.to_string(), text);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCursor(Position);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Position {
    /// Counted from the list's end: jobs taken from its front do not move the others. Jobs are added at the end, so the
    /// last job of the page before tells how many were added since.
    List {
        skip: usize,
        after: Option<JobId>,
    },
    /// In a sorted set.
    Scored(Scored, u64),
    Running {
        worker: String,
        cursor: u64,
    },
    Parked {
        kind: String,
        cursor: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scored {
    Ranked,
    Grouped,
    Delayed,
    Parents,
    Dead,
    Done,
}

impl fmt::Display for JobCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |f: &mut fmt::Formatter<'_>, letter, name: &str, cursor| {
            write!(f, "{letter}{cursor}.")?;
            let mut bytes = name.bytes();
            bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        match &self.0 {
            Position::List { skip, after } => {
                write!(f, "l{skip}")?;
                after.map_or(Ok(()), |after| write!(f, ".{after}"))
            }
            Position::Scored(place, cursor) => write!(f, "{}{cursor}", place.letter()),
            Position::Running { worker, cursor } => named(f, 'x', worker, cursor),
            Position::Parked { kind, cursor } => named(f, 'p', kind, cursor),
        }
    }
}

impl FromStr for JobCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Position::parse(text)
            .map(Self)
            .ok_or_else(|| Error::config("this text is not a cursor of jobs"))
    }
}

impl Position {
    fn parse(text: &str) -> Option<Self> {
        let letter = text.chars().next().filter(char::is_ascii)?;
        let (number, name) = match text[1..].split_once('.') {
            Some((number, name)) => (number, Some(name)),
            None => (&text[1..], None),
        };
        // `parse` would take a sign.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let cursor: u64 = number.parse().ok()?;
        Some(match (letter, name) {
            ('l', name) => {
                let skip = u32::try_from(cursor).ok()? as usize;
                let after: Option<JobId> = match name {
                    Some(id) if skip > 0 => Some(id.parse().ok()?),
                    Some(_) => return None,
                    None => None,
                };
                Self::List { skip, after }
            }
            ('x', Some(name)) => Self::Running {
                worker: name_of(name, 64)
                    .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric()))?,
                cursor,
            },
            ('p', Some(name)) => Self::Parked {
                kind: name_of(name, 255)?,
                cursor,
            },
            (letter, None) => {
                let known = Scored::ALL.iter().find(|known| known.letter() == letter)?;
                Self::Scored(*known, cursor)
            }
            _ => return None,
        })
    }
}

/// A name that is written in hexadecimal digits.
fn name_of(hex: &str, longest: usize) -> Option<String> {
    if hex.is_empty() || !hex.len().is_multiple_of(2) || hex.len() > 2 * longest || !hex.is_ascii()
    {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

impl Scored {
    const ALL: [Self; 6] = [
        Self::Ranked,
        Self::Grouped,
        Self::Delayed,
        Self::Parents,
        Self::Dead,
        Self::Done,
    ];

    /// What it is in the text of a cursor.
    fn letter(self) -> char {
        match self {
            Self::Ranked => 'r',
            Self::Grouped => 'g',
            Self::Delayed => 'd',
            Self::Parents => 'w',
            Self::Dead => 'z',
            Self::Done => 'e',
        }
    }

    fn part(self) -> &'static str {
        match self {
            Self::Ranked => "ranked",
            Self::Grouped => "grouped",
            Self::Delayed => "delayed",
            Self::Parents => "parents",
            Self::Dead => "dead",
            Self::Done => "done",
        }
    }

    /// Where the rest of the jobs of this state are.
    fn next(self) -> Option<Self> {
        match self {
            Self::Ranked => Some(Self::Grouped),
            _ => None,
        }
    }
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
                JobState::Ready => Position::List {
                    skip: 0,
                    after: None,
                },
                JobState::Delayed => Position::Scored(Scored::Delayed, 0),
                JobState::Waiting => Position::Scored(Scored::Parents, 0),
                JobState::Dead => Position::Scored(Scored::Dead, 0),
                JobState::Done | JobState::Cancelled | JobState::Expired => {
                    Position::Scored(Scored::Done, 0)
                }
                JobState::Running => match self.next_worker(None).await? {
                    Some(worker) => Position::Running { worker, cursor: 0 },
                    None => return Ok((Vec::new(), None)),
                },
                JobState::Parked => match self.next_parked_kind(None).await? {
                    Some(kind) => Position::Parked { kind, cursor: 0 },
                    None => return Ok((Vec::new(), None)),
                },
            },
        };
        let (jobs, next) = match position {
            Position::List { skip, after } => {
                let (ids, next) = self.listed(skip, after).await?;
                (self.records("jobs", &ids).await?, Some(next))
            }
            Position::Scored(place, cursor) => {
                let (next, ids) = self.scan_scored(place.part(), cursor).await?;
                let next = match next {
                    0 => place.next().map(|place| Position::Scored(place, 0)),
                    _ => Some(Position::Scored(place, next)),
                };
                let part = if place == Scored::Done {
                    "ended"
                } else {
                    "jobs"
                };
                (self.records(part, &ids).await?, next)
            }
            Position::Running { worker, cursor } => return self.running(worker, cursor).await,
            Position::Parked { kind, cursor } => {
                let part = format!("parked:{kind}");
                let (next, ids) = self.scan_scored(&part, cursor).await?;
                let next = if next > 0 {
                    Some(Position::Parked { kind, cursor: next })
                } else {
                    self.next_parked_kind(Some(&kind))
                        .await?
                        .map(|kind| Position::Parked { kind, cursor: 0 })
                };
                (self.records("jobs", &ids).await?, next)
            }
        };
        let jobs = jobs.into_iter().filter(|job| job.state == state).collect();
        Ok((jobs, next.map(JobCursor)))
    }

    pub(super) async fn first_due(&self) -> Result<Option<std::time::Duration>> {
        let entity = self.queue.entity();
        let mut pipeline = redis::pipe();
        for (command, part) in [
            ("LRANGE", "ready"),
            ("ZRANGE", "ranked"),
            // By name: each of the groups may wait for a place.
            ("ZRANGE", "grouped"),
            ("ZRANGE", "groups"),
            ("ZRANGE", "resting"),
        ] {
            pipeline
                .cmd(command)
                .arg(entity.part(part))
                .arg(0)
                .arg(FIRST - 1);
        }
        let found: Vec<Vec<Vec<u8>>> = self.queue.store().pipeline(&pipeline).await?;
        let [plain, ranked, grouped, in_turn, resting] = &found[..] else {
            return Err(Error::codec("unexpected shape of the reply"));
        };
        let mut first = redis::pipe();
        for group in in_turn.iter().chain(resting) {
            first
                .cmd("ZRANGE")
                .arg(entity.part("grouped"))
                .arg([b"[", &group[..], b"\0"].concat())
                .arg([b"(", &group[..], b"\x01"].concat())
                .arg("BYLEX")
                .arg("LIMIT")
                .arg(0)
                .arg(1);
        }
        let mut ids = [&plain[..], ranked, grouped].concat();
        if !in_turn.is_empty() || !resting.is_empty() {
            let first: Vec<Vec<Vec<u8>>> = self.queue.store().pipeline(&first).await?;
            ids.extend(first.concat());
        }
        let ready = |jobs: &[JobInfo]| {
            let ready = jobs.iter().filter(|job| job.state == JobState::Ready);
            ready.map(|job| job.due).min()
        };
        let jobs = self.records("jobs", &ids).await?;
        let is_plain = |job: &JobInfo| plain.iter().any(|id| id[..] == job.id.0);
        let mut oldest = ready(&jobs);
        // The places of deleted jobs are passed over.
        let mut looked = plain.len();
        let mut all_deleted = plain.len() == FIRST && !jobs.iter().any(is_plain);
        while all_deleted && looked < MOST_DELETED {
            let mut range = redis::cmd("LRANGE");
            let count = SOUGHT / 2;
            range
                .arg(entity.part("ready"))
                .arg(looked)
                .arg(looked + count - 1);
            let ids: Vec<Vec<u8>> = self.queue.store().query(&range).await?;
            looked += ids.len();
            let jobs = self.records("jobs", &ids).await?;
            all_deleted = jobs.is_empty() && ids.len() == count;
            oldest = oldest.into_iter().chain(ready(&jobs)).min();
        }
        Ok(oldest)
    }

    /// A page of the list: the next ids after a job, and where the page after them begins.
    async fn listed(
        &self,
        mut skip: usize,
        after: Option<JobId>,
    ) -> Result<(Vec<Vec<u8>>, Position)> {
        let Some(after) = after else {
            let ids = self.range(skip, PAGE).await?;
            return Ok(page_of(skip, None, ids, PAGE));
        };
        let mut count = PAGE;
        for tries_left in (0..TRIES).rev() {
            // The job itself stands before them, and further from the end if others were added.
            let mut ids = self.range(skip - 1, count + 1).await?;
            let is_last = ids.len() <= count;
            match ids.iter().position(|id| id[..] == after.0) {
                // Little of what was read would be new. The place of the rest is known now; about as many as were added since
                // the last command will have been added until it is read.
                Some(at) if !is_last && count - at < PAGE / 2 && tries_left > 0 => {
                    skip += at;
                    count = (PAGE + 2 * at).min(SOUGHT);
                }
                Some(at) => {
                    skip += at;
                    let rest = ids.split_off(at + 1);
                    return Ok(page_of(skip, Some(after), rest, count - at));
                }
                // Jobs are taken from the front: those before it are gone too.
                None if is_last => {
                    return Ok((Vec::new(), Position::Scored(Scored::Ranked, 0)));
                }
                None => {
                    skip += count;
                    count = (2 * count).min(SOUGHT);
                }
            }
        }
        let after = Some(after);
        Ok((Vec::new(), Position::List { skip, after }))
    }

    /// Ids of the list from its end on, without the newest ones, which are skipped.
    async fn range(&self, skip: usize, count: usize) -> Result<Vec<Vec<u8>>> {
        let mut range = redis::cmd("LRANGE");
        range
            .arg(self.queue.entity().part("ready"))
            .arg(-((skip + count) as i64))
            .arg(-(skip as i64) - 1);
        let mut ids: Vec<Vec<u8>> = self.queue.store().query(&range).await?;
        ids.reverse();
        Ok(ids)
    }

    /// The jobs with these ids, which may have moved on meanwhile.
    async fn records(&self, part: &str, ids: &[Vec<u8>]) -> Result<Vec<JobInfo>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = redis::cmd("HMGET");
        get.arg(self.queue.entity().part(part));
        for id in ids {
            // A place in a group ends with the id.
            get.arg(&id[id.len().saturating_sub(16)..]);
        }
        let records: Vec<Option<Vec<u8>>> = self.queue.store().query(&get).await?;
        Ok(records
            .into_iter()
            .flatten()
            .filter_map(JobInfo::read)
            .collect())
    }

    async fn scan_scored(&self, part: &str, cursor: u64) -> Result<(u64, Vec<Vec<u8>>)> {
        let mut scan = redis::cmd("ZSCAN");
        scan.arg(self.queue.entity().part(part))
            .arg(cursor)
            .arg("COUNT")
            .arg(PAGE);
        let (next, found): (u64, Vec<(Vec<u8>, f64)>) = self.queue.store().query(&scan).await?;
        Ok((next, found.into_iter().map(|(id, _)| id).collect()))
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
        let ids: Vec<Vec<u8>> = held
            .into_iter()
            .filter_map(|(delivery, _)| Some(delivery.get(..16)?.to_vec()))
            .collect();
        let mut jobs = self.records("jobs", &ids).await?;
        jobs.retain(|job| job.state == JobState::Running);
        if !jobs.is_empty() {
            let mut get = redis::cmd("HMGET");
            get.arg(entity.part("details"));
            for job in &jobs {
                get.arg([&job.id.0[..], b"p"].concat());
            }
            let progress: Vec<Option<f64>> = store.query(&get).await?;
            for (job, progress) in jobs.iter_mut().zip(progress) {
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

/// A page of a list that was asked for so many ids, and the place after it.
fn page_of(
    skip: usize,
    after: Option<JobId>,
    mut ids: Vec<Vec<u8>>,
    asked: usize,
) -> (Vec<Vec<u8>>, Position) {
    // More may have been asked for than a page has.
    if ids.len() < asked && ids.len() <= PAGE {
        return (ids, Position::Scored(Scored::Ranked, 0));
    }
    ids.truncate(PAGE);
    let last = ids.last().and_then(|id| JobId::read(id));
    let position = Position::List {
        skip: skip + ids.len(),
        after: last.or(after),
    };
    (ids, position)
}

fn next_name(names: Vec<String>, after: Option<&String>) -> Option<String> {
    names
        .into_iter()
        .filter(|name| after.is_none_or(|after| name > after))
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_as_it_was_written_and_nothing_else_is_one() {
        let mut all = vec![
            Position::List {
                skip: 0,
                after: None,
            },
            Position::List {
                skip: 700_200,
                after: Some(JobId([0xaf; 16])),
            },
            Position::Running {
                worker: "0af3".into(),
                cursor: u64::MAX,
            },
            Position::Parked {
                kind: "send mail: ü\n".into(),
                cursor: 7,
            },
        ];
        all.extend(Scored::ALL.map(|place| Position::Scored(place, 5)));
        for position in all {
            let text = JobCursor(position.clone()).to_string();
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '.';
            assert!(text.chars().all(plain), "{text}");
            assert_eq!(text.parse::<JobCursor>().unwrap().0, position);
        }
        for bad in [
            "",
            "l",
            "l-1",
            "l+1",
            "l4294967296",
            "q5",
            "x5",
            "x5.",
            "x5.2",
            "x5.7d",
            "x5.zz",
            "p5.ff",
            "r5.61",
            "l5.61",
            "l0.0193a0a0a0a0a0a0a0a0a0a0a0a0a0a0",
            "l5.0193a0a0a0a0a0a0a0a0a0a0a0a0a0ax",
            "ü",
            "d18446744073709551616",
            "x.61",
        ] {
            let error = bad.parse::<JobCursor>().unwrap_err();
            assert!(error.is_config(), "{bad}");
        }
    }
}
