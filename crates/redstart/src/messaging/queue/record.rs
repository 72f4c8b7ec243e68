//! A job as it is stored: reading and writing the record that `record.lua` describes.

use std::time::Duration;

use super::{Job, JobId, UniqueUntil};
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
    pub(crate) due: u64,
    pub(crate) id: JobId,
    pub(crate) attempts: u16,
    pub(crate) priority: i16,
    pub(crate) timeout: Option<Duration>,
    pub(crate) unique: Option<Vec<u8>>,
    pub(crate) name: String,
    payload: usize,
}

const HEAD: usize = 46;
const UNTIL_DONE: u8 = 1;
const UNTIL_STARTED: u8 = 2;
const WAS_PARKED: u8 = 4;

impl Record {
    pub(crate) fn delivery(bytes: &[u8]) -> Option<DeliveryId> {
        bytes.get(17..37)?.try_into().ok()
    }

    pub(crate) fn was_parked(bytes: &[u8]) -> bool {
        bytes.get(39).is_some_and(|flags| flags & WAS_PARKED != 0)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if *bytes.first()? != b'J' {
            return None;
        }
        let pair = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let due = std::str::from_utf8(bytes.get(1..17)?).ok()?.parse().ok()?;
        let unique_length = usize::from(pair(44)?);
        let unique = bytes.get(HEAD..HEAD + unique_length)?;
        let at = HEAD + unique_length;
        let name_length = usize::from(*bytes.get(at)?);
        let name = bytes.get(at + 1..at + 1 + name_length)?;
        let millis = u32::from_be_bytes(bytes.get(40..44)?.try_into().ok()?);
        Some(Self {
            due,
            id: JobId::read(bytes.get(17..33)?)?,
            attempts: pair(33)?,
            // The difference fits: the stored number is the priority plus 32768.
            priority: (i32::from(pair(37)?) - 32768) as i16,
            timeout: (millis > 0).then(|| Duration::from_millis(u64::from(millis))),
            unique: (bytes[39] % 4 == UNTIL_DONE).then(|| unique.to_vec()),
            name: std::str::from_utf8(name).ok()?.to_owned(),
            payload: at + 1 + name_length,
        })
    }

    pub(crate) fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.payload..]
    }
}

/// The part of a record that the client writes: all from byte 18 on.
pub(crate) struct Body {
    pub(crate) id: JobId,
    pub(crate) bytes: Vec<u8>,
}

/// What a job is enqueued with, checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) delay: Duration,
    pub(crate) priority: i16,
    pub(crate) timeout: Option<Duration>,
    pub(crate) unique: Option<(String, UniqueUntil)>,
}

/// Priorities are small numbers: with the largest boost their product must stay far below 2^53.
const MAX_PRIORITY: i16 = 1000;
const MAX_UNIQUE: usize = 1024;

impl Options {
    pub(crate) fn check(&self) -> Result<()> {
        if self.priority.unsigned_abs() > MAX_PRIORITY.unsigned_abs() {
            return Err(Error::config(format!(
                "a priority must be from -{MAX_PRIORITY} to {MAX_PRIORITY}"
            )));
        }
        if self.delay > LONGEST {
            return Err(Error::config("a delay must be at most a hundred years"));
        }
        if let Some(timeout) = self.timeout
            && (timeout.is_zero() || timeout.as_millis() > u128::from(u32::MAX))
        {
            return Err(Error::config("a timeout must be from 1 ms to 49 days"));
        }
        if let Some((key, _)) = &self.unique
            && (key.is_empty() || key.len() > MAX_UNIQUE)
        {
            return Err(Error::config(format!(
                "a unique key must have 1 to {MAX_UNIQUE} bytes"
            )));
        }
        Ok(())
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
        let id = JobId::generate();
        let mut bytes = Vec::with_capacity(HEAD - 17 + 1 + name.len() + payload.len());
        bytes.extend_from_slice(&id.0);
        bytes.extend_from_slice(&[0; 4]);
        let priority = (i32::from(options.priority) + 32768) as u16;
        bytes.extend_from_slice(&priority.to_be_bytes());
        bytes.push(match options.unique {
            None => 0,
            Some((_, UniqueUntil::Done)) => UNTIL_DONE,
            Some((_, UniqueUntil::Started)) => UNTIL_STARTED,
        });
        let millis = options.timeout.map_or(0, |timeout| millis(timeout) as u32);
        bytes.extend_from_slice(&millis.to_be_bytes());
        let unique = options.unique.as_ref().map_or("", |(key, _)| key);
        bytes.extend_from_slice(&(unique.len() as u16).to_be_bytes());
        bytes.extend_from_slice(unique.as_bytes());
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
        let options = Options {
            delay: Duration::ZERO,
            priority: -7,
            timeout: Some(Duration::from_millis(1500)),
            unique: Some(("user:5".into(), UniqueUntil::Done)),
        };
        let body = Body::raw("send_mail", b"{\"to\":1}", &options);
        let mut bytes = b"J1763193600000000".to_vec();
        bytes.extend_from_slice(&body.bytes);
        let record = Record::parse(&bytes).unwrap();
        assert_eq!(record.due, 1_763_193_600_000_000);
        assert_eq!(record.id, body.id);
        assert_eq!(record.priority, -7);
        assert_eq!(record.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(record.unique.as_deref(), Some(&b"user:5"[..]));
        assert_eq!(record.name, "send_mail");
        assert_eq!(record.payload(&bytes), b"{\"to\":1}");
        for end in 0..bytes.len() - 8 {
            assert!(Record::parse(&bytes[..end]).is_none(), "cut at {end}");
        }
    }
}
