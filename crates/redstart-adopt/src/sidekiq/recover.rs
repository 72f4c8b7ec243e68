//! Jobs of consumers that died.

use std::time::Duration;

use redis::cmd;

use super::{
    Sidekiq,
    ending::{Ending, finish},
    job::Fields,
};
use crate::{error::Result, script::Lua};

static RECOVER: Lua = Lua::new(include_str!("recover.lua"));

/// All consumers, by the time of their last heartbeat.
pub(super) const CONSUMERS: &str = "redstart:sidekiq:consumers";

/// How often jobs were given back.
pub(super) const RECOVERED: &str = "redstart:sidekiq:recovered";

/// Who looks for dead consumers now.
const RECOVERING: &str = "redstart:sidekiq:recovering";

/// A consumer that has not been heard of for this long, and has no jobs, is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// A job that was in the hands of this many consumers when they died goes to the retries the next time.
const GIVEN_BACK: u32 = 2;

/// How long it is remembered how often a job was given back.
const REMEMBERED: Duration = Duration::from_secs(3 * 86_400);

/// Consumers that are looked at in one round trip.
const PAGE: usize = 500;

/// As many jobs as the script looks at.
const JOBS: u64 = 50;

/// The list of the jobs that a consumer runs.
pub(super) fn working(sidekiq: &Sidekiq, identity: &str, queue: &str) -> String {
    sidekiq.key(&format!("redstart:sidekiq:working:{identity}|{queue}"))
}

impl Sidekiq {
    /// Gives the jobs of dead [consumers](super::SidekiqConsumer) back to their queues; returns how many. Consumers do this on their own: it is for when
    /// none is left.
    ///
    /// A job that three consumers had when they died goes to the retries instead, as if it had failed: it may be what killed them.
    ///
    /// # Errors
    ///
    /// Those of the store. Calling it again is safe.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some jobs may have been given back.
    pub async fn recover(&self) -> Result<u64> {
        let now = self.store.time().await?;
        let before = now.saturating_sub(FORGOTTEN).as_secs();
        let all = cmd("ZRANGE").arg(self.key(CONSUMERS)).arg(0).arg(-1).take();
        let members: Vec<String> = self.store.query(&all).await?;
        let old = cmd("ZCOUNT")
            .arg(self.key(CONSUMERS))
            .arg("-inf")
            .arg(format!("({before}"))
            .take();
        // Members are by age: the first ones are old.
        let old: usize = self.store.query(&old).await?;
        let mut given = 0;
        for (page, members) in members.chunks(PAGE).enumerate() {
            let known: Vec<_> = members.iter().map(|one| one.split_once('|')).collect();
            let mut look = redis::pipe();
            for (identity, queue) in known.iter().flatten() {
                look.cmd("EXISTS").arg(self.key(identity));
                look.cmd("LLEN").arg(working(self, identity, queue));
            }
            let replies: Vec<u64> = match look.is_empty() {
                true => Vec::new(),
                false => self.store.pipeline(&look).await?,
            };
            let mut replies = replies.chunks_exact(2);
            for (n, (member, known)) in members.iter().zip(known).enumerate() {
                let Some((identity, queue)) = known else {
                    continue;
                };
                let Some(&[lives, jobs]) = replies.next() else {
                    break;
                };
                if lives == 0 && (jobs > 0 || page * PAGE + n < old) {
                    given += self.recover_one(member, identity, queue, before).await?;
                }
            }
        }
        Ok(given)
    }

    /// The [consumers](super::SidekiqConsumer) of a queue that have a heartbeat, or jobs.
    pub(crate) async fn consumers_of(&self, queue: &str) -> Result<u64> {
        let all = cmd("ZRANGE").arg(self.key(CONSUMERS)).arg(0).arg(-1).take();
        let members: Vec<String> = self.store.query(&all).await?;
        let of_queue = |member: &&String| member.split_once('|').is_some_and(|one| one.1 == queue);
        let members: Vec<&String> = members.iter().filter(of_queue).collect();
        let mut count = 0;
        for members in members.chunks(PAGE) {
            let mut look = redis::pipe();
            for (identity, queue) in members.iter().filter_map(|one| one.split_once('|')) {
                look.cmd("EXISTS").arg(self.key(identity));
                look.cmd("LLEN").arg(working(self, identity, queue));
            }
            let replies: Vec<u64> = self.store.pipeline(&look).await?;
            let left = replies.chunks(2).filter(|one| one.iter().any(|n| *n > 0));
            count += left.count() as u64;
        }
        Ok(count)
    }

    /// As [`recover`](Self::recover), unless another consumer has done it within this time.
    pub(super) async fn recover_in_turn(&self, within: Duration) -> Result<u64> {
        let claim = cmd("SET")
            .arg(self.key(RECOVERING))
            .arg(1)
            .arg("NX")
            .arg("PX")
            .arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX >> 12))
            .take();
        let mine: Option<String> = self.store.query(&claim).await?;
        match mine {
            Some(_) => self.recover().await,
            None => Ok(0),
        }
    }

    async fn recover_one(
        &self,
        member: &str,
        identity: &str,
        queue: &str,
        before: u64,
    ) -> Result<u64> {
        let list = working(self, identity, queue);
        let keys = [
            self.key(identity),
            list.clone(),
            self.key(&format!("queue:{queue}")),
            self.key("queues"),
            self.key(CONSUMERS),
            self.key(RECOVERED),
        ];
        let mut given = 0;
        loop {
            let (moved, seen, stay): (u64, u64, Vec<Vec<u8>>) = RECOVER
                .run(
                    &self.store,
                    &keys,
                    &[&member, &queue, &before, &GIVEN_BACK, &REMEMBERED.as_secs()],
                )
                .await?;
            given += moved;
            for text in stay {
                tracing::warn!(
                    queue,
                    "a job was in the hands of several consumers when they died, and goes to the retries"
                );
                let ending = match Fields::read(&text) {
                    Some(fields) => Ending::Killed(fields),
                    None => Ending::Malformed,
                };
                given += u64::from(finish(self, queue, None, &list, &text, &ending).await?);
            }
            if seen < JOBS {
                return Ok(given);
            }
        }
    }
}
