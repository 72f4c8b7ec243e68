//! Changes of a graph: in one script within a shard, by intents between two shards.

use super::{Graph, Side, check_pair};
use crate::{
    error::{Error, Result},
    observe,
    script::{Call, Script},
};

pub(in crate::social) static CHANGE: Script = Script::new(
    "graph.change",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("change.lua")
    ),
);
pub(in crate::social) static UNBLOCK: Script =
    Script::new("graph.unblock", include_str!("unblock.lua"));
pub(in crate::social) static INTEND: Script = Script::new(
    "graph.intend",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("intend.lua")
    ),
);
pub(in crate::social) static APPLY: Script = Script::new(
    "graph.apply",
    concat!(
        include_str!("../../script/now.lua"),
        include_str!("apply.lua")
    ),
);
pub(in crate::social) static COMPLETE: Script =
    Script::new("graph.complete", include_str!("complete.lua"));

/// What [`Graph::follow`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a blocked account is not followed"]
pub enum Followed {
    /// The follow is new.
    New,
    /// The account was followed already.
    Already,
    /// One of the two blocks the other.
    Blocked,
}

/// An intent as it is stored.
#[derive(Clone, Debug)]
pub(super) struct Intent {
    pub(super) operation: String,
    pub(super) number: String,
}

impl Graph {
    /// `a` follows `b`. If a reply is lost and the request is sent again, a new follow may be reported as
    /// [`Already`](Followed::Already).
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for a bad account or an account that follows itself; otherwise those of the
    /// [store](crate::Store::query).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the follow is on both sides, on neither, or is completed by [`repair`](Self::repair).
    pub async fn follow(&self, a: &str, b: &str) -> Result<Followed> {
        match self.change("graph.follow", "follow", a, b).await?.as_str() {
            "done" => Ok(Followed::New),
            "already" => Ok(Followed::Already),
            "blocked" => Ok(Followed::Blocked),
            _ => Err(Error::codec("unexpected reply to a follow")),
        }
    }

    /// `a` stops following `b`; `false` if it did not follow.
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

    /// `a` blocks `b`: neither follows the other any more, nor can. `false` if the block existed already.
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

    /// `a` lifts its block of `b`; `false` if there was none. Removed follows are not restored.
    ///
    /// # Errors
    ///
    /// As [`follow`](Self::follow).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the block may or may not be lifted.
    pub async fn unblock(&self, a: &str, b: &str) -> Result<bool> {
        check_pair(a, b)?;
        observe::operation("graph.unblock", self.namespace(), async {
            for _ in 0..ATTEMPTS {
                let call = UNBLOCK.on(self.shard(a)).part(&Side::Blocks.of(a));
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

    /// Changes two accounts: in one script if they are in one shard, in three steps otherwise. Returns `done`,
    /// `already`, `nothing` (to do) or `blocked`.
    async fn change(
        &self,
        name: &'static str,
        operation: &'static str,
        a: &str,
        b: &str,
    ) -> Result<String> {
        check_pair(a, b)?;
        observe::operation(name, self.namespace(), async {
            if self.shard(a).key() != self.shard(b).key() {
                return self.between(operation, a, b).await;
            }
            let mut call = CHANGE.on(self.shard(a));
            for account in [a, b] {
                for side in [Side::Following, Side::Followers, Side::Blocks] {
                    call = call.part(&side.of(account));
                }
            }
            call = call.arg(operation).arg(a).arg(b);
            if operation == "follow" {
                // Sent again it changes nothing; `follow` documents the answer in that case.
                call = call.idempotent();
            }
            call.run(&self.store).await
        })
        .await
    }

    /// An operation between two shards: an intent, then [`finish`](Self::finish).
    async fn between(&self, operation: &'static str, a: &str, b: &str) -> Result<String> {
        for _ in 0..ATTEMPTS {
            let call = INTEND
                .on(self.shard(a))
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
                    let blocked = !self.finish(a, b, &intent).await?;
                    return Ok(if blocked { "blocked" } else { "done" }.to_owned());
                }
                // An unfinished intent for the same pair goes first, so that intents for one pair are applied in
                // order.
                "pending" => drop(self.finish(a, b, &intent).await?),
                _ => return Ok(what),
            }
        }
        Err(busy())
    }

    /// The second and third step of an intent, by any process. Returns `false` if a block refused or cancelled it.
    pub(super) async fn finish(&self, a: &str, b: &str, intent: &Intent) -> Result<bool> {
        let call = APPLY
            .on(self.shard(b))
            .part(&Side::Following.of(b))
            .part(&Side::Followers.of(b))
            .part(&Side::Blocks.of(b))
            .part(&format!("seen:{b}"));
        let (follows, last): (u8, String) = intents(call)
            .part("number")
            .part(&format!("refused:{b}"))
            .arg(&intent.operation)
            .arg(a)
            .arg(b)
            .arg(&intent.number)
            .idempotent()
            .run(&self.store)
            .await?;
        let call = COMPLETE.on(self.shard(a)).part(&Side::Following.of(a));
        intents(call)
            .part(&format!("seen:{a}"))
            .part(&format!("refused:{a}"))
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
}

/// How often an operation yields to another one for the same two accounts.
const ATTEMPTS: usize = 8;

fn busy() -> Error {
    Error::unavailable("other callers kept changing the same two accounts")
}

pub(super) fn intents(call: Call<'_>) -> Call<'_> {
    call.part("intents").part("pending")
}
