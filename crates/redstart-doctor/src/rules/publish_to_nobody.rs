//! Messages are published and nobody listens.
//!
//! PUBLISH hands a message to those who listen at that moment; otherwise it is gone. The rule asks who listens to
//! the channels that were published to. Notifications from scripts, which often have no waiter, and channels of
//! libraries are not reported, and of a channel per user or room the rule is not sure.

use crate::{
    finding::Severity,
    library,
    observation::{Observations, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "publish-to-nobody",
    title: "Messages are published and nobody listens",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::Medium,
    about: "PUBLISH hands a message to those who listen at that moment; otherwise it is gone. The rule asks who listens to the channels that were published to. Notifications from scripts, which often have no waiter, and channels of libraries are not reported, and of a channel per user or room the rule is not sure.",
    timeline: &[
        "the mailer reconnects for two seconds",
        "PUBLISH mail:send 42 → 0 receivers",
        "the mail is never sent",
    ],
    effect: "messages are lost without an error whenever the subscriber is away",
    fix: "a stream with a consumer group for what must arrive: XADD, XREADGROUP, XACK; keep Pub/Sub for hints that may be missed",
    pattern: "notification",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    let patterns: u64 = facts.nodes.iter().filter_map(|node| node.patterns).sum();
    if let Some(trace) = &facts.trace {
        for (name, subject) in trace.channel_patterns() {
            let channel = &trace.channels[name];
            let own = facts.libraries.owner(name).is_some();
            let sent = channel.published - channel.by_scripts;
            if !own
                && sent > 0
                && channel.subscribers == Some(0)
                && !channel.subscribed
                && patterns == 0
            {
                let confidence = match library::is_channel_of_library(name) {
                    true => 0.65,
                    false if trace.left_all => 0.65,
                    // A channel per user, room or request: there are always some whose listener is away.
                    false if subject.contains('*') => 0.6,
                    // A listener may be at the server that was not asked.
                    false if facts.partial => 0.6,
                    false if sent >= 3 => 0.9,
                    // A reply that nobody waits for any more, or a word at a bad moment.
                    false => 0.6,
                };
                out.add(
                    Subject::keys(subject),
                    confidence,
                    format!(
                        "{sent} messages in {:.0} s and no subscriber",
                        trace.seconds()
                    ),
                );
            }
        }
        return;
    }
    let published = facts.calls("publish");
    let listeners: u64 = facts
        .nodes
        .iter()
        .filter_map(|node| node.channels)
        .sum::<u64>()
        + patterns;
    let library = !facts.libraries.found.is_empty();
    if published > 0 && listeners == 0 && facts.nodes.iter().any(|node| node.channels.is_some()) {
        let confidence = if library || facts.groups.is_empty() || published < 20 {
            0.5
        } else {
            0.65
        };
        out.add(Subject::setting("PUBLISH"), confidence, format!("{published} messages were published since the server started and nobody listens to any channel now"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        {
            let mut world = World::new().rounds(5, &["a PUBLISH mail:send #"]);
            let trace = world.0.trace.as_mut().expect("traffic");
            trace
                .channels
                .get_mut(b"mail:send".as_slice())
                .expect("the channel")
                .subscribers = Some(0);
            world
        }
        .must_show(RULE.id);
    }

    fn unheard(lines: &[&str], channel: &str) -> World {
        let mut world = World::new().traffic(lines);
        let trace = world.0.trace.as_mut().expect("traffic");
        let channel = trace.channels.get_mut(channel.as_bytes());
        channel.expect("the channel").subscribers = Some(0);
        world
    }

    #[test]
    fn a_reply_to_one_who_has_gone_is_not_accused() {
        // It was subscribed before the first line, took its reply and left.
        let lines = [
            "s PUBLISH reply:7 1",
            "s PUBLISH reply:7 2",
            "s PUBLISH reply:7 3",
            "c UNSUBSCRIBE reply:7",
        ];
        unheard(&lines, "reply:7").must_be_quiet();
        unheard(
            &[
                "s SPUBLISH r 1",
                "s SPUBLISH r 1",
                "s SPUBLISH r 1",
                "c SUNSUBSCRIBE r",
            ],
            "r",
        )
        .must_be_quiet();
        // One without a name leaves all channels.
        let all = [
            "s PUBLISH r 1",
            "s PUBLISH r 2",
            "s PUBLISH r 3",
            "c UNSUBSCRIBE",
        ];
        unheard(&all, "r").must_be_quiet();
        unheard(&["s PUBLISH reply:8 1", "s PUBLISH reply:8 2"], "reply:8").must_be_quiet();
        unheard(&lines[..3], "reply:7").must_be_quiet();
        unheard(
            &[
                "s PUBLISH mail:send 1",
                "s PUBLISH mail:send 2",
                "s PUBLISH mail:send 3",
            ],
            "mail:send",
        )
        .must_show(RULE.id);
    }

    #[test]
    fn a_server_that_was_not_asked_may_have_the_listener() {
        let lines = ["s PUBLISH mail:send 1"; 5];
        let mut world = unheard(&lines, "mail:send");
        world.0.partial = true;
        world.must_be_quiet();
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        {
            let mut world = World::new().rounds(5, &["a PUBLISH mail:send #"]);
            let trace = world.0.trace.as_mut().expect("traffic");
            trace
                .channels
                .get_mut(b"mail:send".as_slice())
                .expect("the channel")
                .subscribers = Some(2);
            world
        }
        .must_be_quiet();
    }
}
