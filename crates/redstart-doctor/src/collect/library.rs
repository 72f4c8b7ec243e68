//! A closer look at the keys of recognised libraries, within bounds.

use super::Blinds;
use crate::{
    library::Libraries,
    node::{Node, Slots},
    observation::{Group, NodeFacts},
    text::printable,
    wire::{Answer, Words, words},
};

mod bullmq;
mod celery;
mod redstart;
mod sidekiq;

/// Queues that are looked at.
const QUEUES: usize = 50;

/// What the first look suspects, for the second.
#[derive(Default)]
pub(crate) struct Suspects {
    bull: Vec<bullmq::Suspects>,
    sidekiq: Vec<sidekiq::Suspect>,
}

/// Asks queues that are BullMQ's by name for what only BullMQ has.
pub(crate) async fn refute(nodes: &mut [Node], libraries: &mut Libraries, blinds: &mut Blinds) {
    let queues = libraries.unproven_queues();
    if queues.len() > QUEUES {
        blinds.note(
            "queues with names like those of BullMQ",
            format!("{QUEUES} of {} were asked what they are", queues.len()),
        );
    }
    for prefix in queues.into_iter().take(QUEUES) {
        let (mut known, mut looks_like) = (false, false);
        for node in nodes.iter_mut().filter(|node| !node.replica) {
            let meta: Answer<String> = node.wire.get(words!["TYPE", join(&prefix, b"meta")]).await;
            let events: Answer<String> = node
                .wire
                .get(words!["TYPE", join(&prefix, b"events")])
                .await;
            known |= meta.is_ok() && events.is_ok();
            looks_like |= meta.is_ok_and(|kind| kind == "hash");
            looks_like |= events.is_ok_and(|kind| kind == "stream");
        }
        if known && !looks_like {
            libraries.refute(prefix);
        }
    }
}

/// Looks at what the libraries keep. `now` is the server's time in milliseconds.
pub(crate) async fn look(
    nodes: &mut [Node],
    libraries: &mut Libraries,
    groups: &[Group],
    servers: &[NodeFacts],
    slots: &Slots,
    now: u64,
    blinds: &mut Blinds,
) -> Suspects {
    let mut suspects = Suspects::default();
    libraries.waiting = redstart::look(nodes, slots, groups, now, blinds).await;
    let queues = libraries.bull_queues();
    // Of very many queues some are recognised, and the others are known by their names.
    let all = queues.len() + libraries.unproven_queues().len();
    if all > QUEUES {
        let looked = queues.len().min(QUEUES);
        blinds.note(
            "queues of BullMQ",
            format!("{looked} of {all} were looked at"),
        );
    }
    for prefix in queues.into_iter().take(QUEUES) {
        for (index, node) in nodes.iter_mut().enumerate() {
            if node.replica {
                continue;
            }
            let keys = words!["EXISTS", join(&prefix, b"meta"), join(&prefix, b"id")];
            let exists: Answer<u64> = node.wire.get(keys).await;
            if !exists.is_ok_and(|n| n > 0) {
                continue;
            }
            let (mut queue, open) = bullmq::look(node, &prefix, groups).await;
            queue.place = (index, prefix.clone());
            suspects.bull.push(open);
            libraries.bull.push(queue);
        }
    }
    let namespaces = libraries.sidekiq_namespaces();
    if let Some(node) = nodes.iter_mut().find(|node| !node.replica) {
        for namespace in namespaces {
            let found = libraries.sidekiq.get_or_insert_default();
            suspects
                .sidekiq
                .extend(sidekiq::look(node, &namespace, found, blinds).await);
        }
        if libraries.has("Celery") {
            libraries.celery = Some(celery::look(node, servers, now as f64 / 1000.0).await);
        }
    }
    suspects
}

/// The second look: what was only on its way from one state to the next is not there any more.
pub(crate) async fn look_again(nodes: &mut [Node], libraries: &mut Libraries, suspects: &Suspects) {
    for (queue, open) in libraries.bull.iter_mut().zip(&suspects.bull) {
        let (index, prefix) = queue.place.clone();
        bullmq::look_again(&mut nodes[index], &prefix, open, queue).await;
    }
    if let (Some(found), Some(node)) = (
        &mut libraries.sidekiq,
        nodes.iter_mut().find(|node| !node.replica),
    ) {
        sidekiq::look_again(node, &suspects.sidekiq, found).await;
    }
}

fn join(prefix: &[u8], part: &[u8]) -> Vec<u8> {
    [prefix, part].concat()
}

fn queue_name(prefix: &[u8]) -> String {
    printable(prefix.strip_suffix(b":").unwrap_or(prefix))
}

async fn length(node: &mut Node, command: &str, key: Vec<u8>) -> u64 {
    node.wire.get(words![command, key]).await.unwrap_or(0)
}

/// Small commands that leave together; no answer to any of them if the connection is lost.
async fn batch(node: &mut Node, commands: Vec<Words>) -> Vec<Answer> {
    match commands.is_empty() {
        true => Vec::new(),
        false => node.wire.batch(commands).await.unwrap_or_default(),
    }
}
