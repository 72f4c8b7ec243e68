//! A server without a password on a public address.
//!
//! The default user needs no password and the server listens on an address that others can reach. Such servers are
//! found and taken over within hours.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "open-server",
    title: "A server without a password on a public address",
    family: Family::Operation,
    stage: Stage::Free,
    severity: Severity::High,
    about: "The default user needs no password and the server listens on an address that others can reach. Such servers are found and taken over within hours.",
    timeline: &[
        "bind 0.0.0.0, protected-mode no, no password",
        "a scanner connects",
        "CONFIG SET dir /root/.ssh …: it is no longer your host",
    ],
    effect: "anybody who reaches the port reads and deletes everything, and often takes over the host",
    fix: "ACL SETUSER default off, users with passwords and only the commands they need; bind to private addresses; TLS",
    pattern: "none: it is a setting of the server",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for node in &facts.nodes {
        let Some(acl) = &node.acl else { continue };
        let bind = node.setting("bind").unwrap_or_default();
        let local = |address: &str| {
            let address = address.trim_start_matches('-');
            address.starts_with("127.") || address == "::1" || address == "localhost"
        };
        let public = node.config.contains_key("bind")
            && (bind.is_empty() || bind.split_whitespace().any(|address| !local(address)));
        let guarded = node.setting("protected-mode") != Some("no");
        if acl.default_open && public && !guarded {
            let all = if acl.default_all {
                " and all commands"
            } else {
                ""
            };
            out.add(
                Subject::setting("default user"),
                0.95,
                format!(
                    "no password{all}, bind {:?}, protected-mode no ({})",
                    text::printable(bind.as_bytes()),
                    node.address
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::AclFacts;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .config("bind", "* -::*")
            .config("protected-mode", "no")
            .node(|node| {
                node.acl = Some(AclFacts {
                    default_open: true,
                    default_all: true,
                })
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .config("bind", "127.0.0.1")
            .config("protected-mode", "no")
            .node(|node| {
                node.acl = Some(AclFacts {
                    default_open: true,
                    default_all: true,
                })
            })
            .must_be_quiet();
    }
}
