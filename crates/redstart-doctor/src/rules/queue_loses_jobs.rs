//! A queue hands jobs out without keeping them.
//!
//! BRPOP and LPOP remove the job before it is done. If the worker is killed, or the reply is lost, the job is gone.
//! The rule looks for lists that are pushed to and popped from by different connections, without a processing list.
//! Queues of recognised libraries and lists for one answer are not reported.

use crate::pattern::{self, Role};
use crate::{
    finding::Severity,
    observation::{Observations, Sequence, Stage},
    rule::{Family, Findings, Rule, Subject},
};

/// The rule.
pub(super) const RULE: Rule = Rule {
    id: "queue-loses-jobs",
    title: "A queue hands jobs out without keeping them",
    family: Family::Pattern,
    stage: Stage::Observed,
    severity: Severity::High,
    about: "BRPOP and LPOP remove the job before it is done. If the worker is killed, or the reply is lost, the job is gone. The rule looks for lists that are pushed to and popped from by different connections, without a processing list. Queues of recognised libraries and lists for one answer are not reported.",
    timeline: &[
        "app: LPUSH jobs 42",
        "worker: BRPOP jobs → 42",
        "the worker is killed",
        "job 42 never runs and nobody knows",
    ],
    effect: "every crash, deploy or lost connection of a worker loses the job it had",
    fix: "BLMOVE jobs jobs:processing RIGHT LEFT 0, then LREM jobs:processing 1 job when it is done, and put back what stays there too long; or a stream with a consumer group",
    pattern: "job_queue",
    check,
};

fn check(facts: &Observations, out: &mut Findings<'_>) {
    for seen in facts.own_sequences() {
        let ops = &seen.ops;
        if ops.pops == 0 || ops.moves > 0 || ops.by_script > 0 {
            continue;
        }
        let confidence = match (ops.blocking_pops > 0, ops.pushes > 0, seen.is(Role::Queue)) {
            // A list for one answer or one wake-up, which nobody wants when its waiter has gone.
            _ if is_reply(seen) => 0.5,
            (true, true, _) | (true, _, true) => 0.93,
            // What comes was not seen: it may be a library's.
            (true, false, false) => 0.65,
            (false, true, true) => 0.85,
            (false, true, false) if ops.pops >= 5 => 0.65,
            _ => 0.5,
        };
        out.add(Subject::keys(&seen.pattern), confidence, format!("{} pushes and {} pops ({} of them blocking), and nothing keeps a job while it runs", ops.pushes, ops.pops, ops.blocking_pops));
    }
    if facts.sequences.is_empty() && facts.libraries.queue().is_none() {
        let pops = facts.calls("brpop") + facts.calls("blpop");
        let moves = facts.calls("blmove")
            + facts.calls("brpoplpush")
            + facts.calls("lmove")
            + facts.calls("rpoplpush");
        let waiting = facts
            .masters()
            .flat_map(|node| &node.clients)
            .filter(|client| matches!(client.command.as_str(), "brpop" | "blpop"))
            .count();
        if pops > 0 && moves == 0 {
            // A library that works this way is only recognised by its keys.
            let sure = !facts.groups.is_empty();
            let confidence = match (sure, pops >= 5 || waiting > 0) {
                (true, true) => 0.75,
                (false, true) => 0.6,
                _ => 0.5,
            };
            out.add(Subject::setting("BRPOP"), confidence, format!("{pops} calls of BRPOP or BLPOP since the server started, {waiting} clients waiting in one, and no call that moves a job to a processing list"));
        }
    }
}

/// Whether it is a list by which somebody waits for an answer: its name says so, or it gets about one element and expires, is
/// random or is named for what a job gives. A queue with an id in its name, or with a TTL, gets many.
fn is_reply(seen: &Sequence) -> bool {
    const NAMES: &[&str] = &["reply", "replies", "response", "responses", "rpc", "signal"];
    const RESULTS: &[&str] = &["result", "results", "answer", "answers", "done", "ack"];
    let words = pattern::words(&seen.pattern);
    let named = |names: &[&str]| words.iter().any(|word| names.contains(&word.as_str()));
    let once = seen.ops.pushes <= 2 * seen.keys;
    let passes = (seen.ops.expires > 0 || seen.random) && !seen.is(Role::Queue);
    named(NAMES) || (once && (passes || named(RESULTS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::world::World;

    #[test]
    fn it_is_found() {
        World::new()
            .rounds(3, &["a LPUSH jobs j#", "w BRPOP jobs 0"])
            .must_show(RULE.id);
    }

    #[test]
    fn its_healthy_twin_is_quiet() {
        World::new()
            .rounds(
                3,
                &[
                    "a LPUSH jobs j#",
                    "w BLMOVE jobs jobs:busy RIGHT LEFT 0",
                    "w LREM jobs:busy 1 j#",
                ],
            )
            .must_be_quiet();
    }

    #[test]
    fn a_queue_of_one_tenant_or_with_a_ttl_is_still_a_queue() {
        for queue in ["jobs:550e8400-e29b-41d4-a716-446655440000", "mail:outgoing"] {
            let lines = [
                format!("a LPUSH {queue} j#"),
                format!("a EXPIRE {queue} 86400"),
                format!("w BRPOP {queue} 0"),
            ];
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            World::new().rounds(3, &lines).must_show(RULE.id);
        }
    }

    #[test]
    fn a_list_for_one_answer_is_no_queue() {
        let random = "550e8400-e29b-41d4-a716-44665544000#";
        for list in [
            format!("answer:{random}"),
            format!("job:{random}:result"),
            format!("inventory:{random}"),
        ] {
            let lines = [
                format!("s RPUSH {list} x"),
                format!("s EXPIRE {list} 60"),
                format!("c BLPOP {list} 1"),
            ];
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            World::new().rounds(5, &lines).must_be_quiet();
        }
    }

    #[test]
    fn a_pop_of_several_is_a_pop() {
        World::new()
            .rounds(
                3,
                &["a LPUSH jobs j#", "w BLMPOP 0 2 jobs other LEFT COUNT 5"],
            )
            .must_show(RULE.id);
        World::new()
            .rounds(5, &["a LPUSH jobs j#", "w LMPOP 1 jobs LEFT"])
            .must_show(RULE.id);
    }
}
