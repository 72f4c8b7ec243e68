//! Flows across queues: a parent hears of its children in other queues.
//!
//! What became of such a child is written by the script that ends it, in the child's queue. A worker of that queue then
//! tells the parent's queue, and after that removes the message. Wherever it dies, another one does the rest: the parent
//! counts a child once, however often it hears of it.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Queue,
    script::{FLOW_HEAR, FLOW_TOLD},
};
use crate::{error::Result, script::Batch};

/// Where messages are in `parents`: behind all times. As in `place.lua`.
pub(super) const AWAY: u64 = 4_000_000_000_000_000;
/// For how long a queue that could not be reached is left alone.
const ALONE: Duration = Duration::from_secs(5);

/// What a parent is told, as `place.lua` writes it.
struct Message<'a> {
    /// When the child ended.
    stamp: &'a [u8],
    letter: &'a [u8],
    parent: &'a [u8],
    policy: &'a [u8],
    number: &'a [u8],
    namespace: &'a str,
    queue: &'a str,
    text: &'a [u8],
}

impl<'a> Message<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (stamp, rest) = bytes.split_at_checked(16)?;
        let (letter, rest) = rest.split_at_checked(1)?;
        let (length, rest) = rest.split_at_checked(2)?;
        let length = u16::from_be_bytes(length.try_into().ok()?);
        let (link, text) = rest.split_at_checked(usize::from(length))?;
        let (parent, link) = link.split_at_checked(16)?;
        let (policy, link) = link.split_at_checked(1)?;
        let mut parts = link.splitn(3, |byte| *byte == 0);
        Some(Self {
            stamp,
            letter,
            parent,
            policy,
            number: parts.next()?,
            namespace: std::str::from_utf8(parts.next()?).ok()?,
            queue: std::str::from_utf8(parts.next()?).ok()?,
            text,
        })
    }
}

/// Parents in other queues, as one scheduler knows them.
#[derive(Default)]
pub(super) struct Away {
    /// Queues that could not be reached, and until when they are left alone: each try may take a whole deadline, in which
    /// the others would wait.
    unreachable: BTreeMap<Address, Instant>,
}

/// Namespace and name of a queue.
type Address = (String, String);

/// A child's id, and what its parent is to be told.
type Told<'a> = (&'a [u8], Message<'a>);

impl Away {
    /// Tells parents in other queues what became of their children: of each message the child's id and what
    /// `schedule.lua` found. What could not be told stays, and is found again.
    pub(super) async fn tell(&mut self, from: &Queue, messages: &[(Vec<u8>, Vec<u8>)]) {
        let now = Instant::now();
        self.unreachable.retain(|_, until| *until > now);
        let mut queues: BTreeMap<Address, Vec<Told<'_>>> = BTreeMap::new();
        for (child, message) in messages {
            // A newer version may be able to read it.
            let Some(message) = Message::read(message) else {
                tracing::warn!("what a parent in another queue is to be told is unreadable");
                continue;
            };
            let address = (message.namespace.to_owned(), message.queue.to_owned());
            if !self.unreachable.contains_key(&address) {
                queues.entry(address).or_default().push((child, message));
            }
        }
        // At the same time, and each on its own: one that fails or takes long concerns its own messages.
        let telling = queues.into_iter().map(|(address, messages)| async move {
            let told = from.tell_queue(&address, &messages).await;
            (address, told)
        });
        for (address, told) in join_all(telling).await {
            if let Err(error) = told {
                tracing::debug!(%error, "a parent in another queue could not be told of its child");
                if error.is_timeout() || error.is_unavailable() {
                    self.unreachable.insert(address, Instant::now() + ALONE);
                }
            }
        }
    }
}

impl Queue {
    /// Tells the parents in one other queue, and forgets what they have heard.
    async fn tell_queue(&self, address: &Address, messages: &[Told<'_>]) -> Result<()> {
        let queue = self.as_known(address).await?;
        let mut telling = Batch::new();
        for (_, message) in messages {
            let call = queue
                .call(&FLOW_HEAR, &[])
                .arg(message.parent)
                .arg(message.policy)
                .arg(message.number)
                .arg(message.stamp)
                .arg(message.letter)
                .arg(message.text);
            telling.push(call.idempotent());
        }
        let told = telling.run::<u8>(self.store()).await?;
        let (mut removing, mut failure) = (Batch::new(), None);
        for ((child, message), told) in messages.iter().zip(told) {
            match told {
                Ok(_) => {
                    let call = self.call(&FLOW_TOLD, &[]).arg(*child).arg(message.stamp);
                    removing.push(call.idempotent());
                }
                Err(error) => failure = Some(error),
            }
        }
        for removed in removing.run::<u8>(self.store()).await? {
            failure = removed.err().or(failure);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Another queue of the same store. What is left of a parent that fails is what its own workers would leave; if what
    /// they say of that is unreadable, it is what the defaults leave.
    async fn as_known(&self, (namespace, name): &Address) -> Result<Queue> {
        let builder = Queue::builder(self.store(), namespace, name);
        match builder.clone().as_its_workers_have_it().await {
            Ok(builder) => builder.build(),
            Err(error) if error.is_codec() || error.server_code() == Some("WRONGTYPE") => {
                tracing::debug!(%error, "the settings of a queue with parents are unreadable");
                builder.build()
            }
            Err(error) => Err(error),
        }
    }
}
