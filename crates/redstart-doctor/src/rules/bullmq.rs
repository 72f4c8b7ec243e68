//! What the rules about queues of BullMQ share.

use crate::{
    library::BullQueue,
    observation::Observations,
    rule::{Findings, Subject},
};

/// Adds a finding about each queue for which `judge` has a confidence and evidence.
pub(super) fn each(
    facts: &Observations,
    out: &mut Findings<'_>,
    judge: impl Fn(&BullQueue) -> Option<(f64, String)>,
) {
    for queue in &facts.libraries.bull {
        if let Some((confidence, evidence)) = judge(queue) {
            let subject = Subject::keys(format!("BullMQ queue {}", queue.name));
            out.add(subject, confidence, evidence);
        }
    }
}

/// A server with this queue.
#[cfg(test)]
pub(super) fn world(queue: BullQueue) -> super::world::World {
    let mut world = super::world::World::new();
    world.0.libraries.bull.push(BullQueue {
        name: "bull:mail".to_owned(),
        ..queue
    });
    world
}
