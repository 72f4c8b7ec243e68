//! Connections pile up.
//!
//! A program that opens a connection per request and does not close it fills the server until maxclients refuses
//! everybody. The rule looks for many idle connections of one host, for a server near its limit, and for refused
//! connections.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "connection-leak",
    title: "Connections pile up",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Medium,
    about: "A program that opens a connection per request and does not close it fills the server until maxclients refuses everybody. The rule looks for many idle connections of one host, for a server near its limit, and for refused connections.",
    timeline: &[
        "each request: a new client, never closed",
        "after a day: 9,900 idle connections",
        "max number of clients reached; nobody can connect",
    ],
    effect: "the server refuses all new connections once maxclients is reached",
    fix: "one client or pool per process, closed at its end; timeout 300 on the server as a safety net",
    pattern: "redstart::Store: one multiplexed connection per server",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let refused = node.number("rejected_connections").unwrap_or(0);
        let connected = node.number("connected_clients").unwrap_or(0);
        let most = node
            .number("maxclients")
            .or_else(|| node.setting("maxclients")?.parse().ok())
            .unwrap_or(10_000)
            .max(1);
        let later = node.later.get("rejected_connections");
        let later: Option<u64> = later.and_then(|text| text.parse().ok());
        let received = node.number("total_connections_received").unwrap_or(0);
        // What happened once in the life of a server says nothing about now.
        let goes_on =
            later.is_some_and(|later| later > refused) || refused * 100 >= received + refused;
        if refused > 0 && (goes_on || connected * 10 < most * 8) {
            out.add_as(
                Severity::High,
                Subject::setting("maxclients"),
                if goes_on { 0.92 } else { 0.6 },
                format!(
                    "{refused} connections were refused; {connected} of {most} are open ({})",
                    node.address
                ),
            );
        } else if connected * 10 >= most * 8 {
            out.add(
                Subject::setting("maxclients"),
                0.85,
                format!(
                    "{connected} of {most} connections are open ({})",
                    node.address
                ),
            );
        }
        let mut idle: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
        for client in node.clients.iter().filter(|client| {
            client.idle >= facts.limits.idle.as_secs()
                && client.subscriptions == 0
                && !client.flags.contains(['S', 'M', 'b', 'P'])
        }) {
            *idle.entry(client.host.as_str()).or_default() += 1;
        }
        for (host, count) in idle {
            if count >= 100 && count * 2 >= connected {
                out.add(Subject::setting(format!("client {host}")), 0.78, format!("{count} of {connected} connections are of this host and were idle for {} s and more ({})", facts.limits.idle.as_secs(), node.address));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::ClientFacts;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .info("connected_clients", "400")
            .node(|node| {
                node.clients = vec![
                    ClientFacts {
                        host: "10.0.0.9".into(),
                        name: "api".into(),
                        idle: 4000,
                        ..ClientFacts::default()
                    };
                    390
                ]
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .info("connected_clients", "400")
            .node(|node| {
                node.clients = vec![
                    ClientFacts {
                        host: "10.0.0.9".into(),
                        name: "api".into(),
                        idle: 4,
                        ..ClientFacts::default()
                    };
                    390
                ]
            })
            .must_be_quiet();
    }
}
