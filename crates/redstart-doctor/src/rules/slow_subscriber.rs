//! A subscriber is too slow.
//!
//! The server keeps what a subscriber has not read. Beyond client-output-buffer-limit it closes the connection, and
//! all messages until the next subscription are lost. The rule reads the counter of such disconnections and the
//! buffers of subscribers. The counter is of all clients, replicas among them: it alone does not make the rule sure.

use crate::text;
use crate::{
    finding::Severity,
    observation::{ClientFacts, Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "slow-subscriber",
    title: "A subscriber is too slow",
    family: Family::Pattern,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "The server keeps what a subscriber has not read. Beyond client-output-buffer-limit it closes the connection, and all messages until the next subscription are lost. The rule reads the counter of such disconnections and the buffers of subscribers. The counter is of all clients, replicas among them: it alone does not make the rule sure.",
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
        // Sentinels subscribe to every server that they watch.
        let own = |client: &&ClientFacts| {
            client.subscriptions > 0 && !client.name.starts_with("sentinel-")
        };
        let subscribers = node.clients.iter().filter(own);
        let held = subscribers.map(|client| client.output).max().unwrap_or(0);
        let listens = node.channels.unwrap_or(0) + node.patterns.unwrap_or(0) > 0
            || node.calls("subscribe") + node.calls("psubscribe") + node.calls("ssubscribe") > 0;
        if closed > 0 && (listens || held > 0) {
            // The counter is of all clients: replicas and plain ones have limits too.
            let confidence = if held > 0 { 0.85 } else { 0.65 };
            out.add(
                Subject::setting("client-output-buffer-limit pubsub"),
                confidence,
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
            .node(|node| node.clients.push(subscriber("mailer", 70_000)))
            .must_show(RULE.id);
        World::new()
            .node(|node| node.clients.push(subscriber("mailer", 9 << 20)))
            .must_show(RULE.id);
    }

    fn subscriber(name: &str, output: u64) -> ClientFacts {
        ClientFacts {
            name: name.to_owned(),
            subscriptions: 1,
            output,
            ..ClientFacts::default()
        }
    }

    #[test]
    fn replicas_that_were_closed_are_no_subscribers() {
        // Sentinels listen to a channel of their own, and a replica passed its limit during a synchronisation.
        World::new()
            .info("client_output_buffer_limit_disconnections", "4")
            .command("subscribe", 9, 90)
            .node(|node| {
                node.channels = Some(1);
                node.clients
                    .push(subscriber("sentinel-1a2b3c4d-pubsub", 20));
            })
            .must_be_quiet();
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .info("client_output_buffer_limit_disconnections", "0")
            .command("subscribe", 9, 90)
            .must_be_quiet();
    }
}
