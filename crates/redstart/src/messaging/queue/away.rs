//! Flows across queues: a parent hears of its children in other queues.
//!
//! What became of such a child is written by the script that ends it, in the child's queue. A worker of that queue then
//! tells the parent's queue, and after that removes the message. Wherever it dies, another one does the rest: the parent
//! counts a child once, however often it hears of it.

use std::collections::{HashMap, hash_map::Entry};

use super::{
    Queue,
    script::{FLOW_HEAR, FLOW_TOLD},
};
use crate::{error::Result, script::Batch};

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

impl Queue {
    /// Tells parents in other queues what became of their children: of each message the child's id and what
    /// `schedule.lua` found. What could not be told stays, and is found again.
    pub(super) async fn tell_parents(&self, messages: Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        let mut known = Vec::with_capacity(messages.len());
        for (child, message) in &messages {
            match Message::read(message) {
                Some(message) => known.push((child, message)),
                None => {
                    tracing::warn!("what a parent in another queue is to be told is unreadable")
                }
            }
        }
        if known.is_empty() {
            return Ok(());
        }
        let mut queues: HashMap<(&str, &str), Queue> = HashMap::new();
        for (_, message) in &known {
            let address = (message.namespace, message.queue);
            if let Entry::Vacant(unknown) = queues.entry(address) {
                let builder = Queue::builder(self.store(), address.0, address.1);
                // What is left of a parent that fails is what its own workers would leave.
                unknown.insert(builder.as_its_workers_have_it().await?.build()?);
            }
        }
        let mut telling = Batch::new();
        for (_, message) in &known {
            if let Some(queue) = queues.get(&(message.namespace, message.queue)) {
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
        }
        let told = telling.run::<u8>(self.store()).await?;
        let (mut removing, mut failure) = (Batch::new(), None);
        for ((child, message), told) in known.iter().zip(told) {
            match told {
                Ok(_) => {
                    let call = self
                        .call(&FLOW_TOLD, &[])
                        .arg(&child[..])
                        .arg(message.stamp);
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
}
