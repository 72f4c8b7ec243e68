//! A subscriber is too slow.
//!
//! The server keeps what a subscriber has not read. Beyond client-output-buffer-limit it closes the connection, and
//! all messages until the next subscription are lost. The rule reads the counter of such disconnections and the
//! buffers of subscribers. The counter is of all clients: the rule is sure of it where nobody else can have been
//! disconnected, because there was no replica and plain clients have no limit. A client that runs MONITOR is a plain one.
//! Valkey has the counter, and Redis from 7.2 on.

use crate::text;
use crate::{
    finding::Severity,
    observation::{ClientFacts, NodeFacts, Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "slow-subscriber",
    title: "A subscriber is too slow",
    family: Family::Pattern,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "The server keeps what a subscriber has not read. Beyond client-output-buffer-limit it closes the connection, and all messages until the next subscription are lost. The rule reads the counter of such disconnections and the buffers of subscribers. The counter is of all clients: the rule is sure of it where nobody else can have been disconnected, because there was no replica and plain clients have no limit. Valkey has the counter, and Redis from 7.2 on.",
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
            let confidence = match held > 0 || only_subscribers(node) {
                true => 0.85,
                false => 0.65,
            };
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

/// Whether no client but a subscriber can have been disconnected for what it had not read.
fn only_subscribers(node: &NodeFacts) -> bool {
    let none = |field: &str| node.number(field) == Some(0);
    // Whatever reads like a replica, a backup among them, begins with a synchronisation.
    let replicas = none("connected_slaves") && none("sync_full") && none("sync_partial_ok");
    let limits = node.setting("client-output-buffer-limit").unwrap_or("");
    let limits: Vec<&str> = limits.split(' ').collect();
    let plain = limits.chunks_exact(4).find(|class| class[0] == "normal");
    replicas && plain.is_some_and(|class| class[1] == "0" && class[2] == "0")
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

    fn closed(fields: &[(&str, &str)], limits: &str) -> World {
        let world = World::new()
            .info("client_output_buffer_limit_disconnections", "4")
            .command("subscribe", 9, 90)
            .node(|node| {
                let limits = limits.to_owned();
                node.config
                    .insert("client-output-buffer-limit".to_owned(), limits);
            });
        fields
            .iter()
            .fold(world, |world, (field, value)| world.info(field, value))
    }

    const ALONE: &[(&str, &str)] = &[
        ("connected_slaves", "0"),
        ("sync_full", "0"),
        ("sync_partial_ok", "0"),
    ];
    const DEFAULT: &str = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";

    #[test]
    fn where_nobody_else_has_a_limit_it_was_a_subscriber() {
        closed(ALONE, DEFAULT).must_show(RULE.id);
        let plain = "normal 1048576 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        closed(ALONE, plain).must_be_quiet();
        let replica = [ALONE[0], ("sync_full", "1"), ALONE[2]];
        closed(&replica, DEFAULT).must_be_quiet();
        // What may not be read is not known.
        closed(ALONE, "").must_be_quiet();
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
