//! Connections without names.
//!
//! When something goes wrong, CLIENT LIST shows who did it, if clients say their name. The rule is never sure that
//! it matters.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "clients-without-names",
    title: "Connections without names",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Low,
    about: "When something goes wrong, CLIENT LIST shows who did it, if clients say their name. The rule is never sure that it matters.",
    timeline: &[
        "a client sends KEYS *",
        "CLIENT LIST: 400 connections from one gateway, all nameless",
        "nobody can tell which service a client belongs to",
    ],
    effect: "an incident takes longer, because nobody can tell which program a connection belongs to",
    fix: "CLIENT SETNAME service-instance, or the name option of your client library",
    pattern: "redstart::Store names its connections",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let users: Vec<_> = node
            .clients
            .iter()
            .filter(|client| !client.flags.contains(['S', 'M']))
            .collect();
        let nameless = users.iter().filter(|client| client.name.is_empty()).count();
        if users.len() >= 10 && nameless * 10 >= users.len() * 9 {
            out.add(
                Subject::setting("CLIENT SETNAME"),
                if users.len() >= 200 { 0.7 } else { 0.5 },
                format!(
                    "{nameless} of {} connections have no name ({})",
                    users.len(),
                    node.address
                ),
            );
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
            .node(|node| {
                node.clients = vec![
                    ClientFacts {
                        host: "10.0.0.9".into(),
                        ..ClientFacts::default()
                    };
                    300
                ]
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .node(|node| {
                node.clients = vec![
                    ClientFacts {
                        host: "10.0.0.9".into(),
                        name: "api".into(),
                        ..ClientFacts::default()
                    };
                    300
                ]
            })
            .must_be_quiet();
    }
}
