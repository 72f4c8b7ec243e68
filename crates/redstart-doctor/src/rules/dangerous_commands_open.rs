//! Every client may run dangerous commands.
//!
//! KEYS, FLUSHALL, CONFIG, DEBUG and SHUTDOWN are open to every application. It is the default of every server, so
//! the rule is sure only where many use it.

use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "dangerous-commands-open",
    title: "Every client may run dangerous commands",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::Low,
    about: "KEYS, FLUSHALL, CONFIG, DEBUG and SHUTDOWN are open to every application. It is the default of every server, so the rule is sure only where many use it.",
    timeline: &[
        "a library has a bug",
        "FLUSHALL is one call away",
        "it is called",
    ],
    effect: "a bug or a stolen password of one application can delete everything and change the server",
    fix: "ACL SETUSER app on >password ~app:* &app:* +@all -@admin -@dangerous",
    pattern: "none: it is a setting of the server",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in facts.masters() {
        let Some(acl) = &node.acl else { continue };
        let mut hosts: Vec<&str> = node
            .clients
            .iter()
            .map(|client| client.host.as_str())
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        if acl.default_open && acl.default_all {
            let confidence = if hosts.len() >= 5 {
                0.75 * node.maturity(&facts.limits)
            } else {
                0.4
            };
            out.add(
                Subject::setting("default user"),
                confidence,
                format!(
                    "no password and all commands, used from {} hosts ({})",
                    hosts.len(),
                    node.address
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{AclFacts, ClientFacts};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .node(|node| {
                node.acl = Some(AclFacts {
                    default_open: true,
                    default_all: true,
                });
                node.clients = (0..9)
                    .map(|i| ClientFacts {
                        host: format!("10.0.0.{i}"),
                        name: "api".into(),
                        ..ClientFacts::default()
                    })
                    .collect();
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .node(|node| {
                node.acl = Some(AclFacts {
                    default_open: true,
                    default_all: true,
                })
            })
            .must_be_quiet();
    }
}
