//! What changes a graph: in one script within a bucket, by intents between two.

use std::time::Duration;

use super::{Graph, Side, check_pair};
use crate::{
    error::{Error, Result},
    observe,
    script::{Batch, Call, Script},
};

static CHANGE: Script = Script::new("graph.change", include_str!("change.lua"));
static UNBLOCK: Script = Script::new("graph.unblock", include_str!("unblock.lua"));
static INTEND: Script = Script::new("graph.intend", include_str!("intend.lua"));
static APPLY: Script = Script::new("graph.apply", include_str!("apply.lua"));
static COMPLETE: Script = Script::new("graph.complete", include_str!("complete.lua"));
static PENDING: Script = Script::new("graph.pending", include_str!("pending.lua"));

/// What a follow came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It is new.
    New,
    /// It was there.
    Already,
    /// One of the two blocks the other; nothing was written.
    Blocked,
}

/// An intent as it is written down.
#[derive(Clone, Debug)]
struct Intent {
    operation: String,
    number: String,
}

impl Graph {
    /// `a` follows `b`. If a reply is lost on the way and the question is sent again, a new follow may be reported
    /// as [`Already`](Followed::Already) there.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account or an account that follows itself; otherwise those of the
    /// [store](crate::Store::query).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the follow is there on both sides, on neither, or is completed by
    /// [`repair`](Self::repair).
    pub async fn follow(&self, a: &str, b: &str) -> Result<Followed> {
        match self.change("graph.follow", "follow", a, b).await?.as_str() {
            "done" => Ok(Followed::New),
            "already" => Ok(Followed::Already),
            "blocked" => Ok(Followed::Blocked),
            _ => Err(Error::codec("a follow was answered by something else")),
        }
    }

    /// `a` no longer follows `b`; `false` if it did not.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    ///
    /// # Cancel safety
    ///
    /// As [`follow`](Self::follow).
    pub async fn unfollow(&self, a: &str, b: &str) -> Result<bool> {
        let what = self.change("graph.unfollow", "unfollow", a, b).await?;
        Ok(what == "done")
    }

    /// `a` blocks `b`: neither follows the other any more, or can. `false` if the block was there.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    ///
    /// # Cancel safety
    ///
    /// As [`follow`](Self::follow).
    pub async fn block(&self, a: &str, b: &str) -> Result<bool> {
        let what = self.change("graph.block", "block", a, b).await?;
        Ok(what == "done")
    }

    /// `a` lifts its block of `b`; `false` if there was none. Follows do not come back.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, the block may or may not be lifted.
    pub async fn unblock(&self, a: &str, b: &str) -> Result<bool> {
        check_pair(a, b)?;
        observe::operation("graph.unblock", self.namespace(), async {
            for _ in 0..ATTEMPTS {
                let call = UNBLOCK.on(self.bucket(a)).part(&Side::Blocks.of(a));
                let (what, operation, number): (String, String, String) =
                    call.part("intents").arg(a).arg(b).run(&self.store).await?;
                if what == "done" {
                    return Ok(number == "1");
                }
                self.finish(a, b, &Intent { operation, number }).await?;
            }
            Err(busy())
        })
        .await
    }

    /// Does something between two accounts: in one script if they share a bucket, in three steps otherwise. Says
    /// whether it is `done`, was `already` so, has `nothing` to do, or is `blocked`.
    async fn change(
        &self,
        name: &'static str,
        operation: &'static str,
        a: &str,
        b: &str,
    ) -> Result<String> {
        check_pair(a, b)?;
        observe::operation(name, self.namespace(), async {
            if self.bucket(a).key() != self.bucket(b).key() {
                return self.between(operation, a, b).await;
            }
            let mut call = CHANGE.on(self.bucket(a));
            for account in [a, b] {
                for side in [Side::Following, Side::Followers, Side::Blocks] {
                    call = call.part(&side.of(account));
                }
            }
            call = call.arg(operation).arg(a).arg(b);
            if operation == "follow" {
                // Sent again it changes nothing; see what `follow` says of its answer then.
                call = call.idempotent();
            }
            call.run(&self.store).await
        })
        .await
    }

    /// An operation between two buckets: an intent, then [`finish`](Self::finish).
    async fn between(&self, operation: &'static str, a: &str, b: &str) -> Result<String> {
        for _ in 0..ATTEMPTS {
            let call = INTEND
                .on(self.bucket(a))
                .part(&Side::Following.of(a))
                .part(&Side::Followers.of(a))
                .part(&Side::Blocks.of(a));
            let (what, pending, number): (String, String, String) = intents(call)
                .part("number")
                .arg(operation)
                .arg(a)
                .arg(b)
                .run(&self.store)
                .await?;
            let intent = Intent {
                operation: pending,
                number,
            };
            match what.as_str() {
                "go" => {
                    let follows = self.finish(a, b, &intent).await?;
                    let blocked = operation == "follow" && !follows;
                    return Ok(if blocked { "blocked" } else { "done" }.to_owned());
                }
                // Somebody's unfinished business with the same account goes first, so that intents for one pair
                // are done in order.
                "pending" => drop(self.finish(a, b, &intent).await?),
                _ => return Ok(what),
            }
        }
        Err(busy())
    }

    /// The second and third step of an intent, by whomever. Returns whether `a` follows `b` then.
    async fn finish(&self, a: &str, b: &str, intent: &Intent) -> Result<bool> {
        let call = APPLY
            .on(self.bucket(b))
            .part(&Side::Following.of(b))
            .part(&Side::Followers.of(b))
            .part(&Side::Blocks.of(b))
            .part(&format!("seen:{b}"));
        let (follows, last): (u8, String) = intents(call)
            .part("number")
            .arg(&intent.operation)
            .arg(a)
            .arg(b)
            .arg(&intent.number)
            .idempotent()
            .run(&self.store)
            .await?;
        let call = COMPLETE.on(self.bucket(a)).part(&Side::Following.of(a));
        intents(call)
            .part(&format!("seen:{a}"))
            .arg(&intent.operation)
            .arg(a)
            .arg(b)
            .arg(&intent.number)
            .arg(follows)
            .arg(last)
            .idempotent()
            .run(&self.store)
            .await
    }

    /// Completes what crashed callers left half done. Run it every few seconds, in one process or in several.
    ///
    /// Intents younger than `grace` by their server's clock are left to their callers. Returns how many were
    /// completed; a bucket gives at most 100 a call.
    ///
    /// # Errors
    ///
    /// Those of the [store](crate::Store::query); what was not completed is found by the next call.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is done, some intents are completed and the others are found by the next call.
    pub async fn repair(&self, grace: Duration) -> Result<u64> {
        if self.buckets.len() == 1 {
            return Ok(0);
        }
        observe::operation("graph.repair", self.namespace(), async {
            let mut batch = Batch::new();
            for bucket in &self.buckets {
                let call = intents(PENDING.on(bucket));
                batch.push(call.arg(grace.as_micros() as u64).arg(100).idempotent());
            }
            let mut repaired = 0;
            for bucket in batch
                .run::<Vec<(String, String, String, String)>>(&self.store)
                .await?
            {
                for (a, b, operation, number) in bucket? {
                    self.finish(&a, &b, &Intent { operation, number }).await?;
                    repaired += 1;
                }
            }
            observe::events("graph.repaired", repaired);
            Ok(repaired)
        })
        .await
    }
}

/// How often an operation lets another one for the same two accounts go first.
const ATTEMPTS: usize = 8;

fn busy() -> Error {
    Error::unavailable("others change the same two accounts again and again")
}

fn intents(call: Call<'_>) -> Call<'_> {
    call.part("intents").part("pending")
}
