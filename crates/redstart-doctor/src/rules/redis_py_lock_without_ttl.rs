//! A Lock of redis-py without timeout.
//!
//! redis.lock.Lock without timeout sets no TTL. Its value is a version 1 uuid in hex, by which and by whose time the
//! rule knows it. Such a uuid may be an id as well: the rule is sure where the name says that it is a lock, or where the server
//! has a script of redis-py's Lock. If the holder is killed, the lock stays forever.

use crate::observation::{Kind, Shape};
use crate::pattern::Role;
use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "redis-py-lock-without-ttl",
    title: "A Lock of redis-py without timeout",
    family: Family::Library,
    stage: Stage::Sampled,
    severity: Severity::High,
    about: "redis.lock.Lock without timeout sets no TTL. Its value is a version 1 uuid in hex, by which and by whose time the rule knows it. Such a uuid may be an id as well: the rule is sure where the name says that it is a lock, or where the server has a script of redis-py's Lock. If the holder is killed, the lock stays for ever.",
    timeline: &[
        "with r.lock(\"report\"): …, without timeout",
        "the process is killed",
        "nobody can take the lock again",
    ],
    effect: "one crash stops the work that the lock protects until somebody deletes the key by hand",
    fix: "r.lock(\"report\", timeout=30) and lock.extend while the work goes on; DEL a stuck key once, after a check that nobody holds it",
    pattern: "keep redis-py: timeout=30, or mutex",
    check,
};

/// The digests of the scripts by which redis-py releases, extends and renews a lock.
const SCRIPTS: [&str; 3] = [
    "c3f8721cbb97f72bc19e972846bd7aaf91901658",
    "a4e8783852e6b949f9ef3a97212805108459a890",
    "1cac51482acf5858da00f6d685d68f886cd6b6b2",
];

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for group in facts.groups.iter().filter(|group| {
        group.kind == Kind::String
            && matches!(group.library.as_deref(), None | Some("redis-py-lock"))
    }) {
        let held = group
            .facts
            .iter()
            .filter(|fact| fact.shape == Shape::PythonLock && fact.is_permanent());
        let stuck = held.clone().count();
        let oldest = held.filter_map(|fact| fact.token_age).max().unwrap_or(0);
        if stuck > 0 {
            // Programs store such a uuid for other reasons too.
            let known = group.library.is_some()
                || group.is(Role::Lock)
                || SCRIPTS
                    .iter()
                    .any(|digest| facts.libraries.has_script(digest));
            out.add(
                Subject::keys(&group.pattern),
                if known { 0.88 } else { 0.6 },
                format!(
                    "{stuck} of {} keys looked at hold a token of redis-py's Lock and have no TTL; the oldest was made {} ago",
                    group.facts.len(),
                    text::time(oldest)
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::KeyFact;
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new().key("lock:report", token()).must_show(RULE.id);
        let mut world = World::new().key("report", token());
        world.0.libraries.see_script(SCRIPTS[0]);
        world.must_show(RULE.id);
    }

    #[test]
    fn an_id_of_the_same_form_is_not_called_a_lock() {
        World::new().key("invoice:7:id", token()).must_be_quiet();
    }

    fn token() -> KeyFact {
        KeyFact {
            shape: Shape::PythonLock,
            size: 32,
            ..KeyFact::default()
        }
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .key(
                "report",
                KeyFact {
                    shape: Shape::PythonLock,
                    size: 32,
                    ttl: Some(9000),
                    ..KeyFact::default()
                },
            )
            .must_be_quiet();
    }
}
