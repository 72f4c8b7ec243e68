//! A job as it is stored: reading and writing the record that `record.lua` describes.

use std::{sync::Arc, time::Duration};

use super::{
    Backoff, Job, JobId, JobPolicy, JobState, UniqueUntil, flow::ChildFailure, policy::JobBackoff,
};
use crate::{
    codec::{Codec, Json},
    duration::{LONGEST, millis},
    error::{Error, Result},
};

/// Names one delivery of a job: its id, and how often it was tried and handed back.
pub(crate) type DeliveryId = [u8; 20];

/// A parsed record.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) state: Option<JobState>,
    /// The worker that has it, and since when.
    pub(crate) held: Option<(String, u64)>,
    pub(crate) due: u64,
    pub(crate) created: u64,
    pub(crate) id: JobId,
    pub(crate) attempts: u16,
    pub(crate) priority: i16,
    flags: u8,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_attempts: Option<u16>,
    extras: Vec<u8>,
    pub(crate) name: String,
    payload: usize,
}

/// Bytes of a record before its extras, of one that does not run.
const HEAD: usize = 65;
/// Where the part begins that the client writes.
const BODY: usize = 34;
/// What a running record has more.
const HELD: usize = 48;
const UNTIL_DONE: u8 = 1;
const UNTIL_STARTED: u8 = 2;
const FOR_A_TIME: u8 = 3;
const WAS_PARKED: u8 = 4;
const HAS_DETAILS: u8 = 8;
const TO_BE_CANCELLED: u8 = 16;
const CONCERNS_ITS_END: u8 = 64;

impl Record {
    /// Of a record that was just given to a worker.
    pub(crate) fn delivery(bytes: &[u8]) -> Option<DeliveryId> {
        bytes.get(BODY..BODY + 20)?.try_into().ok()
    }

    pub(crate) fn was_parked(bytes: &[u8]) -> bool {
        bytes.get(56).is_some_and(|flags| flags & WAS_PARKED != 0)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if *bytes.first()? != b'J' {
            return None;
        }
        let letter = *bytes.get(1)?;
        let number = |at: usize| -> Option<u64> {
            std::str::from_utf8(bytes.get(at..at + 16)?)
                .ok()?
                .parse()
                .ok()
        };
        let held = match letter {
            b'x' => {
                let worker = String::from_utf8_lossy(bytes.get(2..34)?).into_owned();
                Some((worker, number(34)?))
            }
            _ => None,
        };
        let shift = if held.is_some() { HELD } else { 0 };
        let pair = |at: usize| {
            let at = at + shift;
            Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
        };
        let extras_end = HEAD + shift + usize::from(pair(63)?);
        let name_length = usize::from(*bytes.get(extras_end)?);
        let name = bytes.get(extras_end + 1..extras_end + 1 + name_length)?;
        let timeout = u32::from_be_bytes(bytes.get(57 + shift..61 + shift)?.try_into().ok()?);
        let max_attempts = pair(61)?;
        Some(Self {
            state: JobState::read(letter),
            held,
            due: number(2 + shift)?,
            created: number(18 + shift)?,
            id: JobId::read(bytes.get(BODY + shift..BODY + 16 + shift)?)?,
            attempts: pair(50)?,
            // The difference fits: the stored number is the priority plus 32768.
            priority: (i32::from(pair(54)?) - 32768) as i16,
            flags: *bytes.get(56 + shift)?,
            timeout: (timeout > 0).then(|| Duration::from_millis(u64::from(timeout))),
            max_attempts: (max_attempts > 0).then_some(max_attempts),
            extras: bytes[HEAD + shift..extras_end].to_vec(),
            name: std::str::from_utf8(name).ok()?.to_owned(),
            payload: extras_end + 1 + name_length,
        })
    }

    pub(crate) fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.payload..]
    }

    /// Whether such a job leaves nothing but its record when it is done.
    pub(crate) fn is_plain(&self) -> bool {
        self.flags & (HAS_DETAILS | TO_BE_CANCELLED | CONCERNS_ITS_END) == 0
            && self.flags % 4 != UNTIL_DONE
    }

    pub(crate) fn is_to_be_cancelled(&self) -> bool {
        self.flags & TO_BE_CANCELLED != 0
    }

    fn extra(&self, tag: u8) -> Option<&[u8]> {
        let mut rest = &self.extras[..];
        while let [found, high, low, after @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let value = after.get(..length)?;
            if *found == tag {
                return Some(value);
            }
            rest = &after[length..];
        }
        None
    }

    fn text(&self, tag: u8) -> Option<String> {
        self.extra(tag)
            .map(|value| String::from_utf8_lossy(value).into_owned())
    }

    pub(crate) fn group(&self) -> Option<String> {
        self.text(b'g').filter(|group| !group.starts_with('\u{1}'))
    }

    pub(crate) fn unique(&self) -> Option<String> {
        self.text(b'u')
    }

    pub(crate) fn parent(&self) -> Option<JobId> {
        let link = self.extra(b'p').or_else(|| self.extra(b'q'));
        JobId::read(link?.get(..16)?)
    }

    /// The namespace and the name of the queue of its parent, if that is another one.
    pub(crate) fn parent_queue(&self) -> Option<(String, String)> {
        let mut parts = self.extra(b'q')?.get(16..)?.splitn(3, |byte| *byte == 0);
        let mut name = || Some(String::from_utf8_lossy(parts.next()?).into_owned());
        // How it fails its parent, and its number.
        name()?;
        Some((name()?, name()?))
    }

    /// How many children it has whose results it may ask for.
    pub(crate) fn children(&self) -> Option<u32> {
        self.text(b'n')?.parse().ok()
    }

    /// How long it is kept after its end; zero is for ever.
    pub(crate) fn keep(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.text(b'k')?.parse().ok()?))
    }

    pub(crate) fn expires(&self) -> Option<Duration> {
        let after: u64 = self.text(b'e')?.parse().ok()?;
        Some(Duration::from_micros(self.created) + Duration::from_millis(after))
    }

    /// How it is run, as it was enqueued.
    pub(crate) fn policy(&self) -> JobPolicy {
        let created = Duration::from_micros(self.created);
        JobPolicy {
            attempts: self.max_attempts,
            backoff: self.backoff(),
            timeout: self.timeout,
            expires_after: self.expires().map(|end| end.saturating_sub(created)),
            keep: self.keep(),
            priority: self.priority,
        }
    }

    /// How it holds its unique key; a time is not known here.
    pub(crate) fn uniqueness(&self) -> Option<UniqueUntil> {
        match self.flags % 4 {
            UNTIL_DONE => Some(UniqueUntil::Done),
            UNTIL_STARTED => Some(UniqueUntil::Started),
            FOR_A_TIME => Some(UniqueUntil::For(Duration::ZERO)),
            _ => None,
        }
    }

    pub(crate) fn backoff(&self) -> Option<JobBackoff> {
        let (&tag, value) = self.extra(b'b')?.split_first()?;
        let number = |at: usize| Some(u64::from_be_bytes(value.get(at..at + 8)?.try_into().ok()?));
        Some(match tag {
            b'n' => JobBackoff::Named(String::from_utf8_lossy(value).into_owned()),
            b'f' => JobBackoff::These(Backoff::fixed(Duration::from_millis(number(0)?))),
            _ => JobBackoff::These(Backoff::exponential(
                Duration::from_millis(number(0)?),
                Duration::from_millis(number(8)?),
            )),
        })
    }
}

/// The part of a record that the client writes: all from byte 35 on.
pub(crate) struct Body {
    pub(crate) id: JobId,
    pub(crate) bytes: Vec<u8>,
}

/// A unique key, how long it is held, and what happens to a duplicate that waits.
#[derive(Clone, Debug)]
pub(crate) struct Unique {
    pub(crate) key: String,
    pub(crate) until: UniqueUntil,
    pub(crate) duplicate: Duplicate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Duplicate {
    #[default]
    Keep,
    Replace,
    Restart,
}

/// When a job may run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunAt {
    After(Duration),
    /// Since the Unix epoch.
    At(Duration),
}

/// How a job belongs to the flow it is part of.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(crate) parent: JobId,
    pub(crate) failure: ChildFailure,
    pub(crate) number: u32,
    /// The namespace and the name of the parent's queue, if that is another one.
    pub(crate) away: Option<(Arc<str>, Arc<str>)>,
}

/// What a job is enqueued with, checked.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) run_at: RunAt,
    pub(crate) policy: JobPolicy,
    pub(crate) unique: Option<Unique>,
    pub(crate) group: Option<String>,
    /// The line of its kind, if the kind has a limit. A job of a group waits in its group, and needs a place of its kind too.
    pub(crate) line: Option<String>,
    pub(crate) child_of: Option<Child>,
    pub(crate) children: Option<u32>,
}

/// Priorities are small numbers: with the largest boost their product must stay far below 2^53.
const MAX_PRIORITY: i16 = 1000;
const MAX_KEY: usize = 1024;

impl Options {
    pub(crate) fn new(policy: JobPolicy) -> Self {
        Self {
            run_at: RunAt::After(Duration::ZERO),
            policy,
            unique: None,
            group: None,
            line: None,
            child_of: None,
            children: None,
        }
    }

    /// Where it waits: in its group, or in the line of its kind.
    pub(crate) fn place(&self) -> Option<&str> {
        self.group.as_deref().or(self.line.as_deref())
    }

    /// Whether the jobs may run at once, in their order, and hold no key.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.run_at, RunAt::After(Duration::ZERO))
            && self.policy.priority == 0
            && self.unique.is_none()
            && self.place().is_none()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let policy = &self.policy;
        if policy.priority.unsigned_abs() > MAX_PRIORITY.unsigned_abs() {
            return Err(Error::config(format!(
                "a priority must be from -{MAX_PRIORITY} to {MAX_PRIORITY}"
            )));
        }
        // Records have sixteen digits for microseconds since 1970.
        match self.run_at {
            RunAt::After(delay) if delay > LONGEST => {
                return Err(Error::config("a delay must be at most a hundred years"));
            }
            RunAt::At(time) if time > 2 * LONGEST => {
                return Err(Error::config(
                    "the time of a job must be before the year 2170",
                ));
            }
            _ => {}
        }
        if let (RunAt::After(delay), Some(expires)) = (self.run_at, policy.expires_after)
            && !delay.is_zero()
            && delay >= expires
        {
            return Err(Error::config(
                "a job with this delay would expire before it may run",
            ));
        }
        if let Some(timeout) = policy.timeout
            && (timeout.is_zero() || timeout.as_millis() > u128::from(u32::MAX))
        {
            return Err(Error::config("a timeout must be from 1 ms to 49 days"));
        }
        if policy.attempts == Some(0) {
            return Err(Error::config("a job must have at least one attempt"));
        }
        if let Some(JobBackoff::Named(name)) = &policy.backoff
            && (name.is_empty() || name.len() > 255)
        {
            return Err(Error::config("a backoff's name must have 1 to 255 bytes"));
        }
        let too_long = |key: &str| key.is_empty() || key.len() > MAX_KEY;
        if self
            .unique
            .as_ref()
            .is_some_and(|unique| too_long(&unique.key))
        {
            return Err(Error::config(format!(
                "a unique key must have 1 to {MAX_KEY} bytes"
            )));
        }
        if let Some(group) = &self.group {
            // The line of a kind begins with a control character, so no group is one.
            if too_long(group) || group.bytes().any(|byte| byte < b' ') {
                return Err(Error::config(format!(
                    "a group must have 1 to {MAX_KEY} bytes and no control characters"
                )));
            }
            if policy.priority != 0 {
                return Err(Error::config(
                    "a job of a group has no priority: its group has its turn",
                ));
            }
        }
        Ok(())
    }

    fn flags(&self) -> u8 {
        let unique = match self.unique.as_ref().map(|unique| unique.until) {
            None => 0,
            Some(UniqueUntil::Done) => UNTIL_DONE,
            Some(UniqueUntil::Started) => UNTIL_STARTED,
            Some(UniqueUntil::For(_)) => FOR_A_TIME,
        };
        let policy = &self.policy;
        let rich = self.place().is_some()
            || self.child_of.is_some()
            || self.children.is_some()
            || policy.keep.is_some()
            || policy.expires_after.is_some();
        unique + if rich { CONCERNS_ITS_END } else { 0 }
    }

    fn extras(&self) -> Vec<u8> {
        let mut extras = Vec::new();
        let mut add = |tag: u8, value: &[u8]| {
            extras.push(tag);
            extras.extend_from_slice(&(value.len() as u16).to_be_bytes());
            extras.extend_from_slice(value);
        };
        if let Some(unique) = &self.unique {
            add(b'u', unique.key.as_bytes());
        }
        if let Some(group) = self.place() {
            add(b'g', group.as_bytes());
        }
        if self.group.is_some() && self.line.is_some() {
            add(b'l', b"");
        }
        if let Some(child) = &self.child_of {
            let mut link = child.parent.0.to_vec();
            link.push(child.failure.letter());
            link.extend_from_slice(child.number.to_string().as_bytes());
            match &child.away {
                None => add(b'p', &link),
                Some((namespace, name)) => {
                    for part in [namespace, name] {
                        link.push(0);
                        link.extend_from_slice(part.as_bytes());
                    }
                    add(b'q', &link);
                }
            }
        }
        if let Some(children) = self.children {
            add(b'n', children.to_string().as_bytes());
        }
        if let Some(keep) = self.policy.keep {
            add(b'k', millis(keep).to_string().as_bytes());
        }
        if let Some(expires) = self.policy.expires_after {
            add(b'e', millis(expires).to_string().as_bytes());
        }
        match &self.policy.backoff {
            None => {}
            Some(JobBackoff::Named(name)) => add(b'b', &[b"n", name.as_bytes()].concat()),
            Some(JobBackoff::These(backoff)) => {
                let (tag, first, most) = backoff.parts();
                let mut value = vec![tag];
                value.extend_from_slice(&millis(first).to_be_bytes());
                value.extend_from_slice(&millis(most).to_be_bytes());
                add(b'b', &value);
            }
        }
        extras
    }
}

impl Body {
    pub(crate) fn new<J: Job>(job: &J, options: &Options, max_payload: usize) -> Result<Self> {
        const { assert!(!J::NAME.is_empty() && J::NAME.len() <= 255) };
        let payload = Json::encode(job)?;
        if payload.len() > max_payload {
            return Err(Error::config(format!(
                "the payload has {} bytes; the queue accepts at most {max_payload}",
                payload.len()
            )));
        }
        Ok(Self::raw(J::NAME, &payload, options))
    }

    pub(crate) fn raw(name: &str, payload: &[u8], options: &Options) -> Self {
        Self::with_id(JobId::generate(), name, payload, options)
    }

    pub(crate) fn with_id(id: JobId, name: &str, payload: &[u8], options: &Options) -> Self {
        let extras = options.extras();
        let mut bytes =
            Vec::with_capacity(HEAD - BODY + extras.len() + 1 + name.len() + payload.len());
        bytes.extend_from_slice(&id.0);
        bytes.extend_from_slice(&[0; 4]);
        let policy = &options.policy;
        let priority = (i32::from(policy.priority) + 32768) as u16;
        bytes.extend_from_slice(&priority.to_be_bytes());
        bytes.push(options.flags());
        let timeout = policy.timeout.map_or(0, |timeout| millis(timeout) as u32);
        bytes.extend_from_slice(&timeout.to_be_bytes());
        bytes.extend_from_slice(&policy.attempts.unwrap_or(0).to_be_bytes());
        bytes.extend_from_slice(&(extras.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&extras);
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(payload);
        Self { id, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let policy = JobPolicy::new()
            .priority(-7)
            .timeout(Duration::from_millis(1500))
            .attempts(4)
            .backoff(Backoff::fixed(Duration::from_secs(9)))
            .keep(Duration::from_secs(60))
            .expires_after(Duration::from_secs(5));
        let parent = JobId([7; 16]);
        let options = Options {
            unique: Some(Unique {
                key: "user:5".into(),
                until: UniqueUntil::Done,
                duplicate: Duplicate::Keep,
            }),
            group: Some("tenant".into()),
            child_of: Some(Child {
                parent,
                failure: ChildFailure::Ignore,
                number: 12,
                away: None,
            }),
            children: Some(3),
            ..Options::new(policy)
        };
        let body = Body::raw("send_mail", b"{\"to\":1}", &options);
        let mut bytes = b"Jr17631936000000001763193500000000".to_vec();
        bytes.extend_from_slice(&body.bytes);
        let mut running = b"Jx".to_vec();
        running.extend_from_slice(&[b'w'; 32]);
        running.extend_from_slice(b"1763193600000001");
        running.extend_from_slice(&bytes[2..]);
        for bytes in [bytes, running] {
            let record = Record::parse(&bytes).unwrap();
            assert_eq!(record.held.is_some(), bytes[1] == b'x');
            assert_eq!(record.due, 1_763_193_600_000_000);
            assert_eq!(record.created, 1_763_193_500_000_000);
            assert_eq!(record.id, body.id);
            assert_eq!(record.priority, -7);
            assert_eq!(record.timeout, Some(Duration::from_millis(1500)));
            assert_eq!(record.max_attempts, Some(4));
            assert_eq!(record.unique().as_deref(), Some("user:5"));
            assert_eq!(record.group().as_deref(), Some("tenant"));
            assert_eq!(
                (record.parent(), record.children()),
                (Some(parent), Some(3))
            );
            assert_eq!(record.keep(), Some(Duration::from_secs(60)));
            assert_eq!(
                record.backoff(),
                Some(JobBackoff::These(Backoff::fixed(Duration::from_secs(9))))
            );
            assert_eq!(record.expires(), Some(Duration::from_secs(1_763_193_505)));
            assert!(!record.is_plain());
            assert_eq!(record.name, "send_mail");
            assert_eq!(record.payload(&bytes), b"{\"to\":1}");
            for end in 0..bytes.len() - 8 {
                assert!(Record::parse(&bytes[..end]).is_none(), "cut at {end}");
            }
        }
    }
}
