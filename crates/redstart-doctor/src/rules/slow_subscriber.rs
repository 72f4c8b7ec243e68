//! A subscriber is too slow.
//!
//! The server keeps what a subscriber has not read. Beyond client-output-buffer-limit it closes the connection, and
//! all messages until the next subscription are lost. The rule reads the counter of such disconnections and the
//! buffers of subscribers.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "slow-subscriber",
    title: "A subscriber is too slow",
    family: Family::Pattern,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "The server keeps what a subscriber has not read. Beyond client-output-buffer-limit it closes the connection, and all messages until the next subscription are lost. The rule reads the counter of such disconnections and the buffers of subscribers.",
    timeline: &[
        "a subscriber does slow work in its message handler",
        "its buffer on the server passes 32 MB",
        "the server closes the connection",
        "messages until it is back are lost",
    ],
    effect: "messages are lost in bursts; the server holds memory for those who do not read",
    fix: "take messages off the connection at once and work on them elsewhere; use a stream for what must arrive; look at client-output-buffer-limit pubsub",
    pattern: "event_stream",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let closed = node
            .number("client_output_buffer_limit_disconnections")
            .unwrap_or(0);
        let listens = node.channels.unwrap_or(0) + node.patterns.unwrap_or(0) > 0
            || node.calls("subscribe") + node.calls("psubscribe") + node.calls("ssubscribe") > 0;
        let held = node
            .clients
            .iter()
            .filter(|client| client.subscriptions > 0)
            .map(|client| client.output)
            .max()
            .unwrap_or(0);
        if closed > 0 && listens {
            out.add(
                Subject::setting("client-output-buffer-limit pubsub"),
                0.85,
                format!(
                    "{closed} clients were disconnected because they did not read fast enough ({})",
                    node.address
                ),
            );
        } else if held > 1 << 20 {
            out.add(
                Subject::setting("client-output-buffer-limit pubsub"),
                0.8,
                format!(
                    "a subscriber has {} that it has not read ({})",
                    text::bytes(held),
                    node.address
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .info("client_output_buffer_limit_disconnections", "4")
            .command("subscribe", 9, 90)
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .info("client_output_buffer_limit_disconnections", "0")
            .command("subscribe", 9, 90)
            .must_be_quiet();
    }
}
