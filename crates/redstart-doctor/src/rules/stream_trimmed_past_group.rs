//! A stream is trimmed past a group that has not read it.
//!
//! XADD with MAXLEN and XTRIM remove the oldest entries whether or not they were read. The rule counts what was
//! removed against what each group has read, and looks for pending entries that no longer exist.

use crate::text;
use crate::{
    finding::Severity,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "stream-trimmed-past-group",
    title: "A stream is trimmed past a group that has not read it",
    family: Family::Pattern,
    stage: Stage::Free,
    severity: Severity::High,
    about: "XADD with MAXLEN and XTRIM remove the oldest entries whether or not they were read. The rule counts what was removed against what each group has read, and looks for pending entries that no longer exist.",
    timeline: &[
        "XADD events MAXLEN 1000 with each event",
        "the consumer of billing is down for an hour",
        "4,000 events are trimmed before it reads them",
    ],
    effect: "messages are lost without an error whenever a group is slower than the trimming",
    fix: "trim by MINID at the lowest id that every group has acknowledged; alert on lag",
    pattern: "event_stream",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for stream in facts.own_streams() {
        for group in &stream.groups {
            let subject = || Subject::keys(format!("{} group {}", stream.name, group.name));
            let removed = stream
                .added
                .map(|added| added.saturating_sub(stream.length));
            match removed.zip(group.read) {
                Some((removed, read)) if removed > read => {
                    out.add(subject(), 0.93, format!("{} entries were removed and this group had read {}: {} were never read", text::count(removed), text::count(read), text::count(removed - read)));
                }
                // A group that never read has no count; its position says it.
                _ if group.read.is_none()
                    && group.delivered == (0, 0)
                    && removed.is_some_and(|removed| removed > 0) =>
                {
                    let removed = removed.unwrap_or(0);
                    out.add(
                        subject(),
                        0.8,
                        format!(
                            "{} entries were removed before this group read anything",
                            text::count(removed)
                        ),
                    );
                }
                _ => {}
            }
            if group.vanished > 0 {
                out.add(subject(), 0.92, format!("{} of the first pending entries no longer exist: they were trimmed while a consumer had them", group.vanished));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{GroupFacts, StreamFacts};
    use crate::rules::world::World;
    #[test]
    fn it_is_found() {
        World::new()
            .stream(StreamFacts {
                name: "events".into(),
                length: 1000,
                added: Some(5000),
                groups: vec![GroupFacts {
                    name: "billing".into(),
                    read: Some(100),
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .stream(StreamFacts {
                name: "events".into(),
                length: 1000,
                added: Some(5000),
                groups: vec![GroupFacts {
                    name: "billing".into(),
                    read: Some(4900),
                    lag: Some(100),
                    ..GroupFacts::default()
                }],
                ..StreamFacts::default()
            })
            .must_be_quiet();
    }
}
